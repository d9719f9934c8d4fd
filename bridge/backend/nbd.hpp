// nbd:URI - the export of another NBD server, so that everything that speaks NBD can be exported.
#pragma once

#include <string>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Connects to the server and asks what its export can do. Each queue has a connection of its own
/// if the server allows that (multi-conn), else all share one.
///
/// When a connection breaks, what is under way ends with EIO, and the next request connects again
/// if the export is what it was. Then, if there were writes that no flush had covered, losses()
/// counts one more. If the server is something else, or may still carry out a change whose end
/// nobody knows, the connection stays broken for its queue; a queue opened later connects anew.
///
/// Errors: EINVAL (not an NBD URI, no export of that size), ETIMEDOUT (10 s), ECONNREFUSED, ENOENT,
/// ...
tl::expected<std::unique_ptr<Backend>, Failure> open_nbd(const std::string& uri,
                                                         const BackendOptions& options);

}  // namespace rnbd
