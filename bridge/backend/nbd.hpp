// SPDX-License-Identifier: BSD-3-Clause
// nbd:URI - the export of another NBD server, so that everything that speaks NBD can be exported.
#pragma once

#include <chrono>
#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Connects to the server and reads the abilities of its export. Each queue has its own connection
/// if the server allows that (multi-conn); otherwise all queues share one.
///
/// A broken connection is not replaced for its queue, because the lost writes are unknown: its
/// requests end with EIO. A queue that is opened later connects anew. If writes were under way,
/// only reads work from then on, because the server may still perform the old writes over newer
/// ones.
///
/// Errors: EINVAL (not an NBD URI, no export of that size), ETIMEDOUT (10 s), ECONNREFUSED, ENOENT,
/// ...
tl::expected<std::unique_ptr<Backend>, Failure> open_nbd(const std::string& uri,
                                                         const BackendOptions& options);
/// `patience` is the longest time that a server may owe replies and send none; tests change it.
tl::expected<std::unique_ptr<Backend>, Failure> open_patient_nbd(const std::string& uri,
                                                                 const BackendOptions& options,
                                                                 std::chrono::nanoseconds patience);

}  // namespace rnbd
