#include "bridge/server/search_path.hpp"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

constexpr std::string_view kSessionPlaceholder = "%SESSNAME%";

std::string_view without_leading_slashes(std::string_view name) {
  while (name.starts_with('/')) name.remove_prefix(1);
  return name;
}

/// One system call that is kept inside the directory by the kernel.
OwnedFd open_at_once(int directory, const std::string& name, int flags) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags) | O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS;
  // EAGAIN: something on the way was renamed meanwhile and the kernel could not be sure.
  for (int attempt = 0; attempt < 16; ++attempt) {
    const long fd = ::syscall(SYS_openat2, directory, name.c_str(), &how, sizeof(how));
    if (fd >= 0) return OwnedFd{static_cast<int>(fd)};
    if (errno != EAGAIN && errno != EINTR) break;
  }
  return {};
}

/// The same component by component, for names without `..`: no component is followed if it is a
/// link, so there is no way out either.
OwnedFd open_step_by_step(int directory, std::string_view name, int flags) {
  OwnedFd here;
  while (true) {
    name = without_leading_slashes(name);
    const std::size_t slash = name.find('/');
    const bool last = slash == std::string_view::npos;
    const std::string component{name.substr(0, slash)};
    const int wanted = last ? flags : O_DIRECTORY;
    OwnedFd next{::openat(here ? here.get() : directory, component.c_str(),
                          wanted | O_PATH | O_NOFOLLOW | O_CLOEXEC)};
    if (!next || last) return next;
    here = std::move(next);
    name.remove_prefix(slash);
  }
}

/// The errno for the client: which of several reasons made a name unusable is not its business.
Failure failure_of(int error, std::string_view name, const char* what) {
  const std::string text = quoted(name) + ": " + what;
  switch (error) {
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EAGAIN:
    case EIO:
      return {error, text + ": " + std::strerror(error)};
    case EXDEV:
      return {ENOENT, text + ": the name leads out of the search path"};
    case ELOOP:
      return {ENOENT, text + ": symbolic links are not followed; name the file itself"};
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

/// Opens a place below `directory` that is reached without `..` and without links.
OwnedFd SearchPath::open_beneath(int directory, const std::string& name, int flags) const {
  return use_openat2_ ? open_at_once(directory, name, flags)
                      : open_step_by_step(directory, name, flags);
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
  // Old kernels do not have it, and sandboxes hide it because they cannot look into its arguments
  // (systemd does with RestrictSUIDSGID=).
  path.use_openat2_ = use_openat2 && open_at_once(path.fd_.get(), ".", O_DIRECTORY);
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
    session_directory = open_beneath(base, std::string{session_name}, O_DIRECTORY);
    if (!session_directory)
      return tl::unexpected(failure_of(errno, session_name, "the session's directory"));
    base = session_directory.get();
  }
  FoundFile found;
  found.fd = open_beneath(base, std::string{without_leading_slashes(device_name)}, 0);
  if (!found.fd) return tl::unexpected(failure_of(errno, device_name, "not found"));
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
