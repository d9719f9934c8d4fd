// SPDX-License-Identifier: BSD-3-Clause
// The unavoidable parts of a bridged 4 KiB read, each alone: a request and its answer over a Unix
// socket, the same over TCP, and reading the file. Prints the medians, in microseconds, as JSON.
//
//   bench-limits FILE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <vector>

#include "tests/bench/nbd_client.hpp"

namespace {

using namespace nbdload;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kRequest = 28;        ///< bytes of an NBD request
constexpr std::size_t kAnswer = 16 + 4096;  ///< bytes of a simple reply with its data
constexpr int kRounds = 20000;

/// Median of `step`, in microseconds.
template <typename Step>
double median_us(Step step) {
  std::vector<std::chrono::nanoseconds> took;
  took.reserve(kRounds);
  for (int round = 0; round < kRounds / 10; round++) step();  // caches and scheduler warm up
  for (int round = 0; round < kRounds; round++) {
    auto began = Clock::now();
    step();
    took.push_back(Clock::now() - began);
  }
  std::nth_element(took.begin(), took.begin() + kRounds / 2, took.end());
  return double(took[kRounds / 2].count()) / 1e3;
}

/// Answers until the other end is closed; runs in a process of its own, as servers do.
[[noreturn]] void answer_all(int fd) {
  std::array<char, kRequest> request;
  std::array<char, kAnswer> answer{};
  try {
    while (true) {
      receive_all(fd, request.data(), request.size());
      send_all(fd, answer.data(), answer.size());
    }
  } catch (const std::exception&) {
    std::_Exit(0);
  }
}

double ping_pong_us(int ours, int theirs) {
  pid_t child = ::fork();
  if (child < 0) die("fork");
  if (child == 0) {
    ::close(ours);
    answer_all(theirs);
  }
  ::close(theirs);
  std::array<char, kRequest> request{};
  std::array<char, kAnswer> answer;
  double median = median_us([&] {
    send_all(ours, request.data(), request.size());
    receive_all(ours, answer.data(), answer.size());
  });
  ::close(ours);
  ::waitpid(child, nullptr, 0);
  return median;
}

double unix_us() {
  std::array<int, 2> pair;
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) die("socketpair");
  return ping_pong_us(pair[0], pair[1]);
}

double tcp_us() {
  int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  if (listener < 0 || ::bind(listener, any, length) != 0 || ::listen(listener, 1) != 0 ||
      ::getsockname(listener, any, &length) != 0) {
    die("a TCP socket of 127.0.0.1");
  }
  int ours = connect_to("", "127.0.0.1", std::to_string(ntohs(address.sin_port)));
  int theirs = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (theirs < 0) die("accept");
  ::close(listener);
  int on = 1;
  ::setsockopt(theirs, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return ping_pong_us(ours, theirs);
}

double pread_us(const char* path) {
  int fd = ::open(path, O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (fd < 0 || ::fstat(fd, &status) != 0) die(path);
  std::array<char, 4096> block;
  auto blocks = static_cast<std::uint64_t>(status.st_size) / block.size();
  if (blocks == 0) throw std::runtime_error{"the file is smaller than a block"};
  std::mt19937_64 random{1};
  double median = median_us([&] {
    auto offset = static_cast<off_t>(random() % blocks * block.size());
    if (::pread(fd, block.data(), block.size(), offset) != ssize_t(block.size())) die(path);
  });
  ::close(fd);
  return median;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: bench-limits FILE\n");
    return 2;
  }
  try {
    double over_unix = unix_us(), over_tcp = tcp_us(), read = pread_us(argv[1]);
    std::printf("{\"unix_us\": %.3f, \"tcp_us\": %.3f, \"pread_us\": %.3f}\n", over_unix, over_tcp,
                read);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench-limits: %s\n", error.what());
    return 1;
  }
}
