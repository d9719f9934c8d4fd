// Preloaded into rnbd-server: opening a file FILE hangs as long as there is a FILE.hangs beside it,
// as a mount whose server is away does. No file system here can be made to.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <climits>
#include <cstdarg>
#include <string>

namespace {

/// The server opens what clients name by way of a descriptor in /proc.
void hang(const char* path) {
  char target[PATH_MAX];
  const ssize_t length = ::readlink(path, target, sizeof(target));
  const std::string file =
      length > 0 ? std::string(target, static_cast<std::size_t>(length)) : path;
  while (::access((file + ".hangs").c_str(), F_OK) == 0) ::usleep(20000);
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  static const auto real = reinterpret_cast<decltype(&open)>(dlsym(RTLD_NEXT, "open"));
  std::va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  hang(path);
  return real(path, flags, mode);
}
