// SPDX-License-Identifier: BSD-3-Clause
// A real NBD server for the tests: nbdkit on a Unix socket.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace rnbd::test {

/// Runs `nbdkit ARGUMENTS` on a socket that listens before nbdkit starts, so nobody has to wait for
/// it. Killed with the object.
class NbdServer {
 public:
  NbdServer(const std::string& socket_path, const std::vector<std::string>& arguments);
  ~NbdServer();
  NbdServer(const NbdServer&) = delete;
  NbdServer& operator=(const NbdServer&) = delete;

  static bool installed();
  std::string uri() const { return "nbd+unix:///?socket=" + path_; }
  /// At once, without a farewell, and not before it is gone.
  void kill();
  /// It answers nothing any more.
  void freeze() const;

 private:
  std::string path_;
  pid_t child_ = -1;
};

}  // namespace rnbd::test
