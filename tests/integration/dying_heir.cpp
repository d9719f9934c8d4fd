// SPDX-License-Identifier: BSD-3-Clause
// Preloaded into rnbd-bridge: an heir dies, or hangs, at the step that the file $RNBD_HEIR_FAULT
// names, as `die 3` or `hang 3`. Step 0 is its start; each message that it sends or receives is one
// more: 1 it is ready, 2 and 3 it is given what the other one had, 4 it could serve, 5 it is told
// to. `stay 0` stops the other one when it has named its heir to the service manager, and as long
// as it says `alone 0` that one gets no thread.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kHeirDescriptor = 3;
bool is_heir = false;
int step = 0;

struct Fault {
  char what[8] = "";
  int when = -1;
  bool is(const char* name) const { return std::strcmp(what, name) == 0; }
};

Fault fault() {
  Fault read;
  const char* const path = std::getenv("RNBD_HEIR_FAULT");
  std::FILE* const file = path != nullptr ? std::fopen(path, "re") : nullptr;
  if (file == nullptr) return read;
  if (std::fscanf(file, "%7s %d", read.what, &read.when) != 2) read = {};
  std::fclose(file);
  return read;
}

void fail_here() {
  const Fault now = fault();
  if (now.when != step) return;
  if (now.is("die")) std::raise(SIGKILL);
  if (now.is("hang")) std::raise(SIGSTOP);
}

bool names_heir(const msghdr& message) {
  constexpr char kName[] = "MAINPID=";
  constexpr std::size_t kSize = sizeof(kName) - 1;
  return message.msg_iovlen == 1 && message.msg_iov->iov_len > kSize &&
         std::memcmp(message.msg_iov->iov_base, kName, kSize) == 0;
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
  const ssize_t sent = next<ssize_t(int, const msghdr*, int)>("sendmsg")(socket, message, flags);
  if (names_heir(*message) && fault().is("stay")) std::raise(SIGSTOP);
  return sent;
}

extern "C" ssize_t recvmsg(int socket, msghdr* message, int flags) {
  if (is_heir && socket == kHeirDescriptor) begin_step();
  return next<ssize_t(int, msghdr*, int)>("recvmsg")(socket, message, flags);
}

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*work)(void*), void* context) noexcept {
  if (!is_heir && fault().is("alone")) return EAGAIN;
  return next<int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create")(
      thread, attributes, work, context);
}
