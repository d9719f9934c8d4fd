// SPDX-License-Identifier: BSD-3-Clause
#include "tests/unit/backend/nbd_server.hpp"

#include <doctest/doctest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace rnbd::test {

namespace {

int listen_on(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path, path.data(), path.size());
  unlink(path.c_str());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  REQUIRE(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(listener, 16) == 0);
  return listener;
}

}  // namespace

bool NbdServer::installed() { return std::system("nbdkit --version > /dev/null 2>&1") == 0; }

NbdServer::NbdServer(const std::string& socket_path, const std::vector<std::string>& arguments)
    : path_{socket_path} {
  std::vector<std::string> words{"nbdkit", "-f"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int listener = listen_on(path_);
  child_ = fork();
  REQUIRE(child_ >= 0);
  if (child_ == 0) {
    // Socket activation: descriptor 3, announced in the environment.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    constexpr int kFirst = 3;
    if (listener == kFirst) {
      // dup2() onto itself would leave close-on-exec set.
      const int copy = dup(listener);
      dup2(copy, kFirst);
    } else {
      dup2(listener, kFirst);
    }
    setenv("LISTEN_FDS", "1", 1);
    setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
    unsetenv("LD_PRELOAD");
    execvp("nbdkit", argv.data());
    _exit(127);
  }
  close(listener);
}

void NbdServer::kill() {
  if (child_ < 0) return;
  ::kill(child_, SIGKILL);
  waitpid(child_, nullptr, 0);
  child_ = -1;
}

void NbdServer::freeze() const {
  int status = 0;
  REQUIRE(::kill(child_, SIGSTOP) == 0);
  REQUIRE(waitpid(child_, &status, WUNTRACED) == child_);
}

NbdServer::~NbdServer() {
  kill();
  unlink(path_.c_str());
}

}  // namespace rnbd::test
