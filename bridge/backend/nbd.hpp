// SPDX-License-Identifier: BSD-3-Clause
// nbd:URI - the export of another NBD server, so that everything that speaks NBD can be exported.
#pragma once

#include <chrono>
#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Connects to the server and asks what its export can do. Each queue has a connection of its own
/// if the server allows that (multi-conn), else all share one.
///
/// A connection that breaks stays broken for its queue, because nobody knows which writes were lost
/// with it: requests end with EIO. A queue opened later connects anew; but if changes were under
/// way, only reads work from then on, lest the server carries them out over newer ones.
///
/// Errors: EINVAL (not an NBD URI, no export of that size), ETIMEDOUT (10 s), ECONNREFUSED, ENOENT,
/// ...
tl::expected<std::unique_ptr<Backend>, Failure> open_nbd(const std::string& uri,
                                                         const BackendOptions& options);
/// `patience`: how long a server may owe replies and send none, for tests.
tl::expected<std::unique_ptr<Backend>, Failure> open_patient_nbd(const std::string& uri,
                                                                 const BackendOptions& options,
                                                                 std::chrono::nanoseconds patience);

}  // namespace rnbd
