// SPDX-License-Identifier: BSD-3-Clause
// Preloaded into rnbd-server: opening a file FILE, or asking for its status, hangs as long as there
// is a FILE.hangs beside it, as a mount whose server is away does. No file system here can be made
// to.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace {

/// The server opens what clients name by way of a descriptor in /proc.
std::string target_of(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t length = ::readlink(path.c_str(), target, sizeof(target));
  return length > 0 ? std::string(target, static_cast<std::size_t>(length)) : path;
}

void hang(const std::string& path) {
  const std::string file = target_of(path);
  while (::access((file + ".hangs").c_str(), F_OK) == 0) ::usleep(20000);
}

void hang_at(int directory, const std::string& name) {
  if (directory == AT_FDCWD || name.starts_with('/')) return hang(name);
  hang(target_of("/proc/self/fd/" + std::to_string(directory)) + "/" + name);
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, std::va_list arguments) {
  return (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  hang(path);
  return next<int(const char*, int, ...)>("open")(path, flags, mode);
}

extern "C" int openat(int directory, const char* path, int flags, ...) {
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = mode_of(flags, arguments);
  va_end(arguments);
  hang_at(directory, path);
  return next<int(int, const char*, int, ...)>("openat")(directory, path, flags, mode);
}

// The same calls with _FORTIFY_SOURCE.
extern "C" int __open_2(const char* path, int flags) {
  hang(path);
  return next<int(const char*, int)>("__open_2")(path, flags);
}

extern "C" int __openat_2(int directory, const char* path, int flags) {
  hang_at(directory, path);
  return next<int(int, const char*, int)>("__openat_2")(directory, path, flags);
}

/// Scripts cannot see from outside that it hangs, so it says so.
extern "C" int stat(const char* path, struct stat* status) {
  if (::access((std::string{path} + ".hangs").c_str(), F_OK) == 0) {
    ::dprintf(STDERR_FILENO, "the status of %s hangs\n", path);
    hang(path);
  }
  return next<int(const char*, struct stat*)>("stat")(path, status);
}
