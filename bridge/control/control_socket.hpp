// SPDX-License-Identifier: BSD-3-Clause
// The Unix socket that controls a running program: a line in, a line out.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "bridge/control/commands.hpp"

namespace rnbd {

/// Serves the socket from a thread of its own. Only its owner can connect (mode 0600). If the
/// program runs in the group rnbd, members of the group can connect, too, as readers (0660). A
/// client may send one line after another. It is dropped if it sends nothing for long, sends an
/// endless line, or does not read its answers. There are at most kMaxConnections. A new client
/// takes the place of the oldest silent one, and an owner that of the oldest reader.
///
/// Threads: the handler runs on the thread of the socket, one line at a time. It may block, because
///          only other clients of the socket wait for it. No thread exists before open().
class ControlSocket {
 public:
  static constexpr std::size_t kMaxLine = 4096;  ///< bytes, with its end
  static constexpr unsigned kMaxConnections = 16;

  /// Returns the answer to a line, both without end of line. An exception becomes an error answer.
  using Handler = std::function<std::string(std::string_view line, ControlCaller caller)>;

  /// Replaces a stale socket, on which no program listens any more.
  ///
  /// Errors: a sentence with the path and the remedy.
  static tl::expected<std::unique_ptr<ControlSocket>, std::string> open(const std::string& path,
                                                                        Handler handler);
  /// Closes and removes the socket. Waits until the present line is answered.
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
