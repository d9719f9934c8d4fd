// SPDX-License-Identifier: BSD-3-Clause
// Preloaded into rnbd-bridge: an heir dies, or hangs, at the step that the file $RNBD_HEIR_FAULT
// names, as `die 3` or `hang 3`. Step 0 is its start; each message that it sends or receives is one
// more: 1 it is ready, 2 and 3 it is given what the other one had, 4 it could serve, 5 it is told
// to.
#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kHeirDescriptor = 3;
bool is_heir = false;
int step = 0;

void fail_here() {
  const char* const path = std::getenv("RNBD_HEIR_FAULT");
  std::FILE* const file = path != nullptr ? std::fopen(path, "re") : nullptr;
  if (file == nullptr) return;
  char what[8] = "";
  int when = -1;
  const int found = std::fscanf(file, "%7s %d", what, &when);
  std::fclose(file);
  if (found != 2 || when != step) return;
  std::raise(std::strcmp(what, "die") == 0 ? SIGKILL : SIGSTOP);
}

void begin_step() {
  ++step;
  fail_here();
}

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

__attribute__((constructor)) void look() {
  is_heir = std::getenv("RNBD_HEIR") != nullptr;
  if (is_heir) fail_here();
}

}  // namespace

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  if (is_heir && socket == kHeirDescriptor) begin_step();
  return next<ssize_t(int, const msghdr*, int)>("sendmsg")(socket, message, flags);
}

extern "C" ssize_t recvmsg(int socket, msghdr* message, int flags) {
  if (is_heir && socket == kHeirDescriptor) begin_step();
  return next<ssize_t(int, msghdr*, int)>("recvmsg")(socket, message, flags);
}
