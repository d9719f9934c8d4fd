// SPDX-License-Identifier: BSD-3-Clause
// Preloaded into rnbd-server: fsync(2) and fdatasync(2) hang as long as there is the file
// RNBD_HANG_SYNC, as on a disk whose controller is away.
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

namespace {

int sync(const char* name, int fd) {
  const char* const file = std::getenv("RNBD_HANG_SYNC");
  while (file != nullptr && ::access(file, F_OK) == 0) ::usleep(20'000);
  return reinterpret_cast<int (*)(int)>(dlsym(RTLD_NEXT, name))(fd);
}

}  // namespace

extern "C" int fsync(int fd) { return sync("fsync", fd); }

extern "C" int fdatasync(int fd) { return sync("fdatasync", fd); }
