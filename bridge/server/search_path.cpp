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

constexpr std::string_view kPlaceholders[] = {"%SESSNAME%", "%IDENTITY%"};

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

bool is_same_file_name(std::string_view a, std::string_view b) {
  const auto take = [](std::string_view& name) {
    name = without_leading_slashes(name);
    const std::string_view component = name.substr(0, name.find('/'));
    name.remove_prefix(component.size());
    return component;
  };
  while (true) {
    const std::string_view one = take(a);
    if (one != take(b)) return false;
    if (one.empty()) return true;
  }
}

bool SearchPath::is_per_owner(const std::string& directory) {
  return directory.ends_with(kPlaceholders[0]) || is_per_user(directory);
}

bool SearchPath::is_per_user(const std::string& directory) {
  return directory.ends_with(kPlaceholders[1]);
}

tl::expected<SearchPath, Failure> SearchPath::open(const std::string& directory, bool use_openat2) {
  SearchPath path;
  path.directory_ = directory;
  std::string base = directory;
  for (const std::string_view placeholder : kPlaceholders) {
    const std::size_t at = base.find(placeholder);
    if (at == std::string::npos) continue;
    if (at + placeholder.size() != base.size() || (at > 0 && base[at - 1] != '/')) {
      const std::string word{placeholder};
      return tl::unexpected(
          Failure{EINVAL, "search path '" + directory + "': " + word +
                              " must be its last component; write e.g. /srv/rnbd/" + word});
    }
    path.per_owner_ = true;
    base.resize(at);
  }
  if (base.empty()) base.push_back('.');
  path.fd_ = rtrs::OwnedFd{::open(base.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)};
  if (!path.fd_) {
    const int error = errno;
    return tl::unexpected(Failure{error, "search path '" + directory +
                                             "': " + std::strerror(error) +
                                             "; name a directory that the server may enter"});
  }
  path.use_openat2_ = use_openat2 && has_openat2(path.fd_.get());
  return path;
}

tl::expected<FoundFile, Failure> SearchPath::find(std::string_view owner,
                                                  std::string_view device_name) const {
  if (!is_tame(device_name))
    return tl::unexpected(failure_of(ENOENT, device_name, "'.' and '..' are not allowed"));
  rtrs::OwnedFd own_directory;
  int base = fd_.get();
  if (per_owner_) {
    if (owner.find('/') != std::string_view::npos || !is_tame(owner))
      return tl::unexpected(failure_of(ENOENT, owner, "not a directory's name"));
    // A user with the right to make links in one directory must not come into another one.
    own_directory =
        open_beneath(base, std::string{owner}, O_DIRECTORY, Links::refuse, use_openat2_);
    if (!own_directory) return tl::unexpected(failure_of(errno, owner, "its directory"));
    base = own_directory.get();
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
