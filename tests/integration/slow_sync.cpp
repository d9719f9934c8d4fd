// SPDX-License-Identifier: BSD-3-Clause
// Preloaded into rnbd-server: fsync(2) takes 10 ms, as on a disk that has much to do, and each one
// of a directory adds a byte to a file. The disk that runs a test may be of any speed.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

extern "C" int fsync(int fd) {
  static const auto real = reinterpret_cast<decltype(&fsync)>(dlsym(RTLD_NEXT, "fsync"));
  constexpr useconds_t kSlow = 10'000;
  struct stat status {};
  const char* const file = std::getenv("RNBD_COUNT_SYNCS");
  if (file != nullptr && ::fstat(fd, &status) == 0 && S_ISDIR(status.st_mode)) {
    const int count = ::open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (count >= 0 && ::write(count, "d", 1) < 1) std::abort();
    ::close(count);
  }
  ::usleep(kSlow);
  return real(fd);
}
