// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/process.hpp"

#include <fcntl.h>
#include <linux/capability.h>
#include <malloc.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <limits>

#include "bridge/daemon/shutdown.hpp"

namespace rnbd {

bool open_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // A text that nobody gets must not pass for written.
    const int how = stream == STDOUT_FILENO ? O_RDONLY : O_RDWR;
    if (::fcntl(stream, F_GETFD) < 0 && ::open("/dev/null", how) != stream) return false;
  }
  return true;
}

void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// By default malloc raises its threshold with each large buffer that is freed, up to 32 MiB.
/// Smaller buffers then stay in one of its many arenas. A fixed threshold prevents that.
void keep_no_freed_memory() {
  constexpr int kThreshold = 128 * 1024;
  constexpr int kArenas = 2;
  ::mallopt(M_MMAP_THRESHOLD, kThreshold);
  ::mallopt(M_TRIM_THRESHOLD, kThreshold);
  ::mallopt(M_ARENA_MAX, kArenas);
}

std::uint64_t raise_memlock_limit() {
  constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> mine{};
  if (::syscall(SYS_capget, &header, mine.data()) == 0 &&
      (mine[0].effective & 1U << CAP_IPC_LOCK) != 0)
    return kNone;
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return kNone;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY ? kNone : limit.rlim_cur;
}

std::string write_pid_file(const std::string& path) {
  const int fd = ::open(path.c_str(),
                        O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  const std::string text = std::to_string(::getpid()) + "\n";
  const bool written =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (!written)
    return "pid file " + path + ": " + std::strerror(error) +
           "; name a file in a directory that the server may write to";
  remove_at_exit(path);
  return "";
}

std::string complaint_about_ready_fd(int fd) {
  if (fd < 0 || ::fcntl(fd, F_GETFD) >= 0) return "";
  return "--ready-fd " + std::to_string(fd) + " is not open; open it, e.g. --ready-fd 3 3>ready";
}

}  // namespace rnbd
