// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/beneath.hpp"

#include <fcntl.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace rnbd {
namespace {

constexpr int kMostLinks = 40;                 ///< the kernel's own limit
constexpr std::size_t kMostComponents = 1024;  ///< of the name, with those that links add to it

rtrs::OwnedFd none(int error) {
  errno = error;
  return {};
}

/// One system call that is kept inside the directory by the kernel.
rtrs::OwnedFd open_at_once(int directory, const std::string& name, int flags, Links links) {
  open_how how{};
  how.flags = static_cast<std::uint64_t>(flags) | O_PATH | O_CLOEXEC;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  if (links == Links::refuse) how.resolve |= RESOLVE_NO_SYMLINKS;
  // EAGAIN: something on the way was renamed meanwhile and the kernel could not be sure.
  for (int attempt = 0; attempt < 16; ++attempt) {
    const long fd = ::syscall(SYS_openat2, directory, name.c_str(), &how, sizeof(how));
    if (fd >= 0) return rtrs::OwnedFd{static_cast<int>(fd)};
    if (errno != EAGAIN && errno != EINTR) break;
  }
  return {};
}

/// The same by component. No step follows a link: its text is read from the opened link, and its
/// components are taken like those of the name. `..` goes back to the directory before. So all that
/// it ever has open was reached from the directory downwards, even if things are renamed meanwhile.
class Walk {
 public:
  Walk(int directory, Links links) : directory_{directory}, links_{links} {}

  rtrs::OwnedFd run(std::string_view name, int flags) {
    if (!add(name)) return none(ENAMETOOLONG);
    while (!ahead_.empty()) {
      const std::string component = std::move(ahead_.back());
      ahead_.pop_back();
      if (component == ".") continue;
      if (component == "..") {
        if (way_.empty()) return none(EXDEV);
        way_.pop_back();
        continue;
      }
      if (auto found = step(component, flags)) return std::move(*found);
    }
    return none(EISDIR);
  }

 private:
  int here() const { return way_.empty() ? directory_ : way_.back().get(); }

  /// None: the walk goes on.
  std::optional<rtrs::OwnedFd> step(const std::string& component, int flags) {
    rtrs::OwnedFd next{::openat(here(), component.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC)};
    struct stat status {};
    if (!next || ::fstat(next.get(), &status) != 0) return rtrs::OwnedFd{};
    if (S_ISLNK(status.st_mode)) {
      if (follow(next)) return std::nullopt;
      return rtrs::OwnedFd{};
    }
    const bool last = ahead_.empty();
    if ((!last || (flags & O_DIRECTORY) != 0) && !S_ISDIR(status.st_mode)) return none(ENOTDIR);
    if (last) return next;
    way_.push_back(std::move(next));
    return std::nullopt;
  }

  /// False, and errno: it must not be followed.
  bool follow(const rtrs::OwnedFd& link) {
    const auto fail = [](int error) {
      errno = error;
      return false;
    };
    if (links_ == Links::refuse || ++followed_ > kMostLinks) return fail(ELOOP);
    struct statfs where {};
    if (::fstatfs(link.get(), &where) != 0) return false;
    if (where.f_type == PROC_SUPER_MAGIC) return fail(ELOOP);
    std::array<char, PATH_MAX> text{};
    const ssize_t length = ::readlinkat(link.get(), "", text.data(), text.size());
    if (length < 0) return false;
    if (length == 0 || static_cast<std::size_t>(length) == text.size()) return fail(ENAMETOOLONG);
    if (text[0] == '/') return fail(EXDEV);
    return add({text.data(), static_cast<std::size_t>(length)}) || fail(ENAMETOOLONG);
  }

  /// Puts `text` in front of the rest. A slash at the end asks for a directory, as a dot behind it
  /// does.
  bool add(std::string_view text) {
    std::vector<std::string> parts;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find('/', begin), text.size());
      const bool at_end = end == text.size();
      if (end > begin) parts.emplace_back(text.substr(begin, end - begin));
      if (at_end && end == begin && !parts.empty()) parts.emplace_back(".");
      begin = end + 1;
    }
    if (ahead_.size() + parts.size() > kMostComponents) return false;
    ahead_.insert(ahead_.end(), std::move_iterator{parts.rbegin()},
                  std::move_iterator{parts.rend()});
    return true;
  }

  int directory_;
  Links links_;
  int followed_ = 0;
  std::vector<std::string> ahead_;  ///< the next one is the last
  std::vector<rtrs::OwnedFd> way_;  ///< from the directory to where the walk is
};

}  // namespace

bool has_openat2(int directory) {
  return static_cast<bool>(open_at_once(directory, ".", O_DIRECTORY, Links::refuse));
}

rtrs::OwnedFd open_beneath(int directory, const std::string& name, int flags, Links links,
                           bool use_openat2) {
  return use_openat2 ? open_at_once(directory, name, flags, links)
                     : Walk{directory, links}.run(name, flags);
}

}  // namespace rnbd
