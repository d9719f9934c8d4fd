// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/send_buffer.hpp"

#include <arpa/inet.h>
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>

namespace rtrs::tcp::send_buffer_test {
namespace {

constexpr int kFew = 416 * 1024;

TEST_CASE("send buffer: the kernel's choice where the way is long, or nobody knows") {
  CHECK(send_buffer_for(0) == 0);
  CHECK(send_buffer_for(101) == 0);
  CHECK(send_buffer_for(20'000) == 0);
  CHECK(send_buffer_for(std::numeric_limits<std::uint32_t>::max()) == 0);  // no sample, says Linux
  CHECK(send_buffer_for(1) == kFew);
  CHECK(send_buffer_for(100) == kFew);
}

int send_buffer_of(int socket) {
  int bytes = 0;
  socklen_t size = sizeof(bytes);
  REQUIRE(getsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, &size) == 0);
  return bytes;
}

/// Both ends of a new connection, with their send buffers bounded.
std::array<int, 2> bounded_send_buffers() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), size) == 0);
  REQUIRE(::listen(listener, 1) == 0);
  REQUIRE(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  const int here = socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(connect(here, reinterpret_cast<sockaddr*>(&address), size) == 0);
  const int there = accept(listener, nullptr, nullptr);
  REQUIRE(there >= 0);
  std::array<int, 2> buffers{};
  bound_send_buffer(here);
  bound_send_buffer(there);
  buffers = {send_buffer_of(here), send_buffer_of(there)};
  for (const int socket : {listener, here, there}) close(socket);
  return buffers;
}

TEST_CASE("send buffer: few bytes between two ends on one machine") {
  int most = 0;
  std::ifstream{"/proc/sys/net/core/wmem_max"} >> most;
  REQUIRE(most > 0);
  const int few = 2 * std::min(kFew, most);  // the kernel doubles it
  // The machine may be so busy that the way from it to itself is long.
  std::array<int, 2> buffers{};
  for (int attempt = 0; attempt < 50 && buffers != std::array{few, few}; ++attempt)
    buffers = bounded_send_buffers();
  CHECK(buffers[0] == few);
  CHECK(buffers[1] == few);
}

TEST_CASE("send buffer: what is no connection is left alone") {
  const int unconnected = socket(AF_INET, SOCK_STREAM, 0);
  const int before = send_buffer_of(unconnected);
  bound_send_buffer(unconnected);
  CHECK(send_buffer_of(unconnected) == before);
  close(unconnected);
  bound_send_buffer(-1);
}

}  // namespace
}  // namespace rtrs::tcp::send_buffer_test
