// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/notify.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace rnbd {
namespace {

constexpr int kFirstInherited = 3;

int option_of(int fd, int option) {
  int value = -1;
  socklen_t size = sizeof(value);
  return ::getsockopt(fd, SOL_SOCKET, option, &value, &size) == 0 ? value : -1;
}

bool listens(int fd, Sockets kind) {
  const int domain = option_of(fd, SO_DOMAIN);
  const bool fits = domain == AF_INET || domain == AF_INET6 ||
                    (domain == AF_UNIX && kind == Sockets::tcp_and_unix);
  return fits && option_of(fd, SO_TYPE) == SOCK_STREAM && option_of(fd, SO_ACCEPTCONN) == 1;
}

}  // namespace

void notify_manager(const std::string& state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return;
  const std::size_t length = std::strlen(path);
  if (length >= sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  // A service manager that does not hear it has gone; there is nobody to tell.
  [[maybe_unused]] const ssize_t sent = ::sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                                                 reinterpret_cast<const sockaddr*>(&address), size);
  ::close(fd);
}

tl::expected<std::vector<int>, std::string> inherited_sockets(Sockets kind) {
  const char* pid = std::getenv("LISTEN_PID");
  const char* count = std::getenv("LISTEN_FDS");
  if (pid == nullptr || count == nullptr || std::atol(pid) != ::getpid()) return {};
  std::vector<int> fds;
  for (int fd = kFirstInherited; fd < kFirstInherited + std::atoi(count); ++fd) {
    if (!listens(fd, kind)) {
      return tl::unexpected(
          "descriptor " + std::to_string(fd) + " from the service manager is not a listening TCP " +
          (kind == Sockets::tcp ? "" : "or Unix ") + "socket; use ListenStream=ADDRESS:PORT" +
          (kind == Sockets::tcp ? "" : " or =PATH") + " in the socket unit");
    }
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    fds.push_back(fd);
  }
  ::unsetenv("LISTEN_PID");
  ::unsetenv("LISTEN_FDS");
  ::unsetenv("LISTEN_FDNAMES");
  return fds;
}

std::string write_ready_line(int fd, const std::string& line) {
  const std::string text = line + "\n";
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (fd > STDERR_FILENO) ::close(fd);
  if (written) return "";
  return "cannot write to the descriptor of --ready-fd " + std::to_string(fd) + ": " +
         std::strerror(error) + "; open it for writing, e.g. --ready-fd 3 3>ready";
}

}  // namespace rnbd
