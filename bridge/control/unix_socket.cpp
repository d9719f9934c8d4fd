// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/control/unix_socket.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

namespace rnbd {
namespace {

constexpr int kBacklog = 128;

std::string reason(int error) { return strerrordesc_np(error); }

/// A service manager makes those of /run, which are gone after a boot.
std::string advice_on_missing(const std::filesystem::path& directory) {
  const std::string name = directory.string();
  const bool of_run = directory.parent_path() == "/run";
  return "there is no directory " + name + "; create it (mkdir " + name +
         (of_run ? ", or RuntimeDirectory=" + directory.filename().string() + " in its unit" : "") +
         "), or name another one";
}

constexpr const char* kNoSocket = "what is there is no socket, choose another path";

/// The reason why a new socket must not replace the existing file; null if it is a stale socket.
const char* why_not_replace(const sockaddr_un& address) {
  struct stat status;
  if (::lstat(address.sun_path, &status) == 0 && !S_ISSOCK(status.st_mode)) {
    return kNoSocket;
  }
  // Does not wait: a server that is busy with other clients counts as present, too.
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const bool refused =
      fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 &&
      errno == ECONNREFUSED;
  if (fd >= 0) ::close(fd);
  return refused ? nullptr : "another program listens there, choose another path";
}

}  // namespace

std::string complaint_about_socket_path(const std::string& path) {
  if (path.empty()) return "the path is missing";
  if (path.size() < sizeof(sockaddr_un::sun_path)) return "";
  return "the path is longer than 107 bytes, which the system does not allow";
}

std::string complaint_about_socket_place(const std::string& path) {
  struct stat status;
  if (::lstat(path.c_str(), &status) != 0 || S_ISSOCK(status.st_mode)) return "";
  return "control socket " + path + ": " + kNoSocket;
}

tl::expected<std::string, std::string> absolute_socket_path(std::string_view path) {
  std::string absolute = path.empty() ? "" : std::filesystem::absolute(path).string();
  if (std::string wrong = complaint_about_socket_path(absolute); !wrong.empty()) {
    return tl::unexpected(wrong);
  }
  return absolute;
}

tl::expected<int, std::string> listen_on_unix_socket(const std::string& path, mode_t mode) {
  if (std::string wrong = complaint_about_socket_path(path); !wrong.empty()) {
    return tl::unexpected(wrong);
  }
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return tl::unexpected(reason(errno));
  ::fchmod(fd, mode);  // the file from bind() gets the permissions of the socket. Source: unix(7)
  const auto bind = [&] {
    const bool done = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    return done ? 0 : errno;
  };
  int error = bind();
  std::string advice = "name a file in a directory that is there, and that you may write to";
  if (error == ENOENT) advice = advice_on_missing(std::filesystem::path{path}.parent_path());
  if (error == EADDRINUSE) {
    if (const char* reason_to_stay = why_not_replace(address); reason_to_stay != nullptr) {
      advice = reason_to_stay;
    } else {
      ::unlink(path.c_str());
      error = bind();
    }
  }
  if (error == 0 && ::listen(fd, kBacklog) == 0) return fd;
  if (error == 0) error = errno;
  ::close(fd);
  return tl::unexpected(reason(error) + "; " + advice);
}

}  // namespace rnbd
