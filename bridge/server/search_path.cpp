// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/search_path.hpp"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/beneath.hpp"

namespace rnbd {
namespace {

constexpr std::string_view kSessionPlaceholder = "%SESSNAME%";

std::string_view without_leading_slashes(std::string_view name) {
  while (name.starts_with('/')) name.remove_prefix(1);
  return name;
}

/// The errno for the client: which of several reasons made a name unusable is not its business.
Failure failure_of(int error, std::string_view name, const char* what) {
  const std::string text = in_quotes(name) + ": " + what;
  switch (error) {
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case EIO:
      return {error, text + ": " + std::strerror(error)};
    case EXDEV:
      return {ENOENT, text + ": a symbolic link leads out of it"};
    case ELOOP:
      return {ENOENT, text + ": symbolic links in a loop, or one that is not followed"};
    default:
      return {ENOENT, text + ": " + std::strerror(error)};
  }
}

}  // namespace

bool identify(const struct stat& status, FileIdentity& identity) {
  if (S_ISBLK(status.st_mode)) {
    identity = {true, status.st_rdev, 0};
    return true;
  }
  identity = {false, status.st_dev, status.st_ino};
  return S_ISREG(status.st_mode);
}

bool is_tame(std::string_view name) {
  name = without_leading_slashes(name);
  if (name.empty()) return false;
  while (!name.empty()) {
    const std::size_t slash = name.find('/');
    const std::string_view component = name.substr(0, slash);
    if (component == "." || component == "..") return false;
    if (slash == std::string_view::npos) break;
    name.remove_prefix(slash + 1);
  }
  return true;
}

bool SearchPath::is_per_session(const std::string& directory) {
  return directory.ends_with(kSessionPlaceholder);
}

tl::expected<SearchPath, Failure> SearchPath::open(const std::string& directory, bool use_openat2) {
  SearchPath path;
  path.directory_ = directory;
  std::string base = directory;
  if (const std::size_t at = base.find(kSessionPlaceholder); at != std::string::npos) {
    if (at + kSessionPlaceholder.size() != base.size() || (at > 0 && base[at - 1] != '/')) {
      return tl::unexpected(
          Failure{EINVAL, "search path '" + directory +
                              "': %SESSNAME% must be its last component; write e.g. "
                              "/srv/rnbd/%SESSNAME%"});
    }
    path.per_session_ = true;
    base.resize(at);
  }
  if (base.empty()) base.push_back('.');
  path.fd_ = OwnedFd{::open(base.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
  if (!path.fd_) {
    const int error = errno;
    return tl::unexpected(Failure{error, "search path '" + directory +
                                             "': " + std::strerror(error) +
                                             "; name a directory that the server may enter"});
  }
  path.use_openat2_ = use_openat2 && has_openat2(path.fd_.get());
  return path;
}

tl::expected<FoundFile, Failure> SearchPath::find(std::string_view session_name,
                                                  std::string_view device_name) const {
  if (!is_tame(device_name))
    return tl::unexpected(failure_of(ENOENT, device_name, "'.' and '..' are not allowed"));
  OwnedFd session_directory;
  int base = fd_.get();
  if (per_session_) {
    if (session_name.find('/') != std::string_view::npos || !is_tame(session_name))
      return tl::unexpected(failure_of(ENOENT, session_name, "not a directory's name"));
    // Who may make links in one directory must not come into another one.
    session_directory =
        open_beneath(base, std::string{session_name}, O_DIRECTORY, Links::refuse, use_openat2_);
    if (!session_directory)
      return tl::unexpected(failure_of(errno, session_name, "the session's directory"));
    base = session_directory.get();
  }
  FoundFile found;
  found.fd = open_beneath(base, std::string{without_leading_slashes(device_name)}, 0, Links::follow,
                          use_openat2_);
  if (!found.fd) {
    const int error = errno;
    const std::string where = "no export has this name, and below the search path " + directory_;
    return tl::unexpected(failure_of(error, device_name, where.c_str()));
  }
  struct stat status {};
  if (::fstat(found.fd.get(), &status) != 0)
    return tl::unexpected(failure_of(errno, device_name, "fstat"));
  if (!identify(status, found.identity)) {
    return tl::unexpected(
        failure_of(ENOENT, device_name, "only regular files and block devices can be exported"));
  }
  return found;
}

}  // namespace rnbd
