// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/whole_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

namespace rnbd {
namespace {

std::string system_reason(const std::string& path) { return path + ": " + std::strerror(errno); }

/// The server may run as another user and could not read a file of ours.
bool keep_owner(int fd, const std::string& old) {
  struct stat status {};
  if (::stat(old.c_str(), &status) != 0) return errno == ENOENT;
  return ::fchown(fd, status.st_uid, status.st_gid) == 0 &&
         ::fchmod(fd, status.st_mode & 07777) == 0;
}

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  return ::fsync(fd) == 0;
}

}  // namespace

tl::expected<void, std::string> write_file(const std::string& path, std::string_view text,
                                           mode_t mode) {
  const std::string fresh = path + ".new";
  ::unlink(fresh.c_str());
  const int fd = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0) return tl::unexpected(system_reason(fresh));
  bool good = keep_owner(fd, path) && write_all(fd, text);
  if (::close(fd) != 0) good = false;
  if (good && ::rename(fresh.c_str(), path.c_str()) == 0) return {};
  auto wrong = tl::unexpected(system_reason(path));
  ::unlink(fresh.c_str());
  return wrong;
}

tl::expected<rtrs::OwnedFd, std::string> lock_files_beside(const std::string& path) {
  std::string directory = std::filesystem::path{path}.parent_path();
  if (directory.empty()) directory = ".";
  rtrs::OwnedFd lock{::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  if (!lock || ::flock(lock.get(), LOCK_EX) != 0) return tl::unexpected(system_reason(directory));
  return lock;
}

tl::expected<rtrs::OwnedFd, std::string> lock_file(const std::string& path) {
  for (;;) {
    rtrs::OwnedFd lock{::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600)};
    if (!lock || ::flock(lock.get(), LOCK_EX) != 0) return tl::unexpected(system_reason(path));
    struct stat ours {
    }, there{};
    if (::fstat(lock.get(), &ours) != 0) return tl::unexpected(system_reason(path));
    // Its last owner may have removed the file, and another command may have made it anew.
    const bool same = ::stat(path.c_str(), &there) == 0 && there.st_ino == ours.st_ino &&
                      there.st_dev == ours.st_dev;
    if (same) return lock;
  }
}

}  // namespace rnbd
