// SPDX-License-Identifier: BSD-3-Clause
// A Unix socket over which a running program is asked and told: a line in, a line out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "bridge/control/commands.hpp"

namespace rnbd {

/// Serves the socket from a thread of its own, for its owner (mode 0600), and, if the program runs
/// in the group rnbd, for that group to look (0660). A client may send
/// one line after another. One that sends nothing for long, a line without an end, or does not read
/// its answers is dropped. There are at most kMaxConnections; the oldest of those that have not
/// sent a line in time makes room for the next, and the oldest reader for an owner.
///
/// Threads: the handler runs on the thread of the socket, one line at a time, and may block: nobody
///          but other clients of the socket waits for it. No thread exists before open().
class ControlSocket {
 public:
  static constexpr std::size_t kMaxLine = 4096;  ///< bytes, with its end
  static constexpr unsigned kMaxConnections = 16;

  /// The answer to a line; both are without their ends. An exception is answered as an error.
  using Handler = std::function<std::string(std::string_view line, ControlCaller caller)>;

  /// A socket on which nobody listens any more is replaced.
  ///
  /// Errors: a sentence that names the path and says what to do.
  static tl::expected<std::unique_ptr<ControlSocket>, std::string> open(const std::string& path,
                                                                        Handler handler);
  /// Closes and removes the socket; waits for the line that is being answered.
  ~ControlSocket();
  ControlSocket(const ControlSocket&) = delete;
  ControlSocket& operator=(const ControlSocket&) = delete;

 private:
  class Server;

  ControlSocket(const std::string& path, int fd, Handler handler);

  std::string path_;
  std::unique_ptr<Server> server_;
};

}  // namespace rnbd
