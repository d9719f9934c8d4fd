// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/notify.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

namespace rnbd {
namespace {

constexpr int kFirstInherited = 3;
/// The beginning of names of stored descriptors that are not listening sockets.
/// No name of a socket unit begins so: rnbd-server.socket, rnbd-bridge@disk0.socket.
constexpr std::string_view kStoredPrefix = "kept-by-rnbd-";

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

/// The address of the manager, or none.
std::optional<std::pair<sockaddr_un, socklen_t>> manager_address() {
  const char* path = std::getenv("NOTIFY_SOCKET");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path == nullptr || (path[0] != '/' && path[0] != '@')) return std::nullopt;
  const std::size_t length = std::strlen(path);
  if (length >= sizeof(address.sun_path)) return std::nullopt;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';
  return std::pair{address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length)};
}

/// With a descriptor, unless that is -1.
bool send_to_manager(std::string state, int attached) {
  auto address = manager_address();
  const int fd = address ? ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0) : -1;
  if (fd < 0) return false;
  iovec text{state.data(), state.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = &address->first;
  message.msg_namelen = address->second;
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  if (attached >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &attached, sizeof(int));
  }
  const bool sent = ::sendmsg(fd, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(state.size());
  ::close(fd);
  return sent;
}

struct Inherited {
  int fd = -1;
  std::string name;
};

/// All that the manager has passed, with their names.
std::vector<Inherited> inherited() {
  const char* pid = std::getenv("LISTEN_PID");
  const char* count = std::getenv("LISTEN_FDS");
  const char* names = std::getenv("LISTEN_FDNAMES");
  if (pid == nullptr || count == nullptr || std::atol(pid) != ::getpid()) return {};
  std::vector<Inherited> all;
  std::istringstream words{names != nullptr ? names : ""};
  for (int fd = kFirstInherited; fd < kFirstInherited + std::atoi(count); ++fd) {
    all.push_back({fd, ""});
    std::getline(words, all.back().name, ':');
    ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  return all;
}

}  // namespace

void notify_manager(const std::string& state) { send_to_manager(state, -1); }

std::size_t most_kept_descriptors() {
  const char* most = std::getenv("FDSTORE");
  if (std::getenv("NOTIFY_SOCKET") == nullptr || most == nullptr) return 0;
  return static_cast<std::size_t>(std::max(std::atoi(most), 0));
}

bool manager_keeps_descriptors() { return most_kept_descriptors() != 0; }

bool store_descriptor(const std::string& name, int fd) {
  return send_to_manager("FDSTORE=1\nFDNAME=" + std::string{kStoredPrefix} + name + "\n", fd);
}

void forget_descriptor(const std::string& name) {
  notify_manager("FDSTOREREMOVE=1\nFDNAME=" + std::string{kStoredPrefix} + name + "\n");
}

std::vector<StoredDescriptor> stored_descriptors() {
  std::vector<StoredDescriptor> stored;
  for (const Inherited& each : inherited()) {
    if (each.name.starts_with(kStoredPrefix))
      stored.push_back({each.name.substr(kStoredPrefix.size()), each.fd});
  }
  return stored;
}

tl::expected<std::vector<int>, std::string> inherited_sockets(Sockets kind) {
  std::vector<int> fds;
  for (const auto& [fd, name] : inherited()) {
    if (name.starts_with(kStoredPrefix)) continue;
    if (!listens(fd, kind)) {
      return tl::unexpected(
          "descriptor " + std::to_string(fd) + " from the service manager is not a listening TCP " +
          (kind == Sockets::tcp ? "" : "or Unix ") + "socket; use ListenStream=ADDRESS:PORT" +
          (kind == Sockets::tcp ? "" : " or =PATH") + " in the socket unit");
    }
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
