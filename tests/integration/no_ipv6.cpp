// SPDX-License-Identifier: BSD-3-Clause
// A kernel that was started with ipv6.disable=1, for the program that this is preloaded into.
#include <dlfcn.h>
#include <sys/socket.h>

#include <cerrno>

extern "C" int socket(int domain, int type, int protocol) noexcept {
  using Function = int (*)(int, int, int);
  static const auto real = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "socket"));
  if (domain != AF_INET6) return real(domain, type, protocol);
  errno = EAFNOSUPPORT;
  return -1;
}
