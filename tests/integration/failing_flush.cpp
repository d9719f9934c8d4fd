// SPDX-License-Identifier: BSD-3-Clause
// Preloaded into rnbd-server: fdatasync(2) fails once when there is a file that says so, as the
// kernel reports an error of writing back, once, to each open file description. No disk here can be
// made to.
#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

extern "C" int fdatasync(int fd) {
  static const auto real = reinterpret_cast<decltype(&fdatasync)>(dlsym(RTLD_NEXT, "fdatasync"));
  const char* const file = std::getenv("RNBD_FAIL_FLUSH");
  if (file != nullptr && ::unlink(file) == 0) {
    errno = EIO;
    return -1;
  }
  return real(fd);
}
