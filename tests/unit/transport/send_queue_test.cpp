// SPDX-License-Identifier: BSD-3-Clause
// The order in which frames leave a connection that cannot take them all at once.
#include "rdma/transport/tcp/send_queue.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

namespace rtrs::tcp::send_queue_test {
namespace {

constexpr std::size_t kLarge = std::size_t{1} << 20;

/// Each frame has a number in its immediate, and the receiver tells them in the order of arrival.
class Bench {
 public:
  Bench() {
    std::array<int, 2> sockets{};
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets.data()) == 0);
    stream_.emplace(sockets[0]);
    receiver_ = sockets[1];
  }
  ~Bench() { ::close(receiver_); }

  Ticket push(std::uint32_t number, std::size_t bytes, FrameOrder order) {
    FrameHeader header;
    header.length = static_cast<std::uint32_t>(bytes);
    header.immediate = number;
    return queue.push(header, ConstBytes{data_}.first(bytes), {}, order);
  }
  /// Sends what the socket takes.
  void send() { REQUIRE(queue.send(*stream_) == 0); }
  /// Receives so many bytes, and sends as there is room. Returns the numbers of the frames whose
  /// headers have come.
  std::vector<std::uint32_t> receive(std::size_t bytes) {
    std::vector<std::uint32_t> numbers;
    std::vector<std::byte> buffer(64 * 1024);
    while (bytes > 0) {
      send();
      const std::size_t want = left_ > 0 ? left_ : sizeof(FrameHeader) - header_.size();
      const ssize_t n = ::read(receiver_, buffer.data(), std::min({bytes, want, buffer.size()}));
      if (n <= 0) break;
      bytes -= static_cast<std::size_t>(n);
      if (left_ > 0) {
        left_ -= static_cast<std::size_t>(n);
        continue;
      }
      header_.insert(header_.end(), buffer.begin(), buffer.begin() + n);
      if (header_.size() < sizeof(FrameHeader)) continue;
      FrameHeader header;
      std::memcpy(&header, header_.data(), sizeof(header));
      header_.clear();
      left_ = header.length;
      numbers.push_back(header.immediate);
    }
    return numbers;
  }
  std::vector<std::uint32_t> receive_all() { return receive(std::size_t{1} << 40); }

  SendQueue queue;

 private:
  std::vector<std::byte> data_ = std::vector<std::byte>(kLarge);
  std::optional<Stream> stream_;
  int receiver_ = -1;
  std::vector<std::byte> header_;  ///< that part of it which has come
  std::size_t left_ = 0;           ///< bytes of the payload at hand
};

TEST_CASE("send queue: a small frame waits for one large frame at most, not for all") {
  Bench bench;
  for (std::uint32_t i = 1; i <= 64; ++i) bench.push(i, kLarge, FrameOrder::any);
  bench.send();  // begins the first
  bench.push(65, 4096, FrameOrder::any);
  const auto order = bench.receive_all();
  REQUIRE(order.size() == 65);
  CHECK(order[0] == 1);
  CHECK(order[1] == 65);
  CHECK(order[2] == 2);
  CHECK(order[64] == 64);
}

TEST_CASE("send queue: a frame whose order is kept comes behind all that were posted before it") {
  Bench bench;
  bench.push(1, kLarge, FrameOrder::any);
  bench.send();
  for (std::uint32_t i = 2; i <= 400; ++i) bench.push(i, 4096, FrameOrder::any);
  bench.push(401, 0, FrameOrder::kept);
  bench.push(402, 4096, FrameOrder::any);
  const auto order = bench.receive_all();
  REQUIRE(order.size() == 402);
  const auto place = std::ranges::find(order, 401U);
  for (std::uint32_t i = 1; i <= 400; ++i) CHECK(std::find(order.begin(), place, i) != place);
}

TEST_CASE("send queue: no more than 256 KiB overtake a large frame") {
  Bench bench;
  for (std::uint32_t i = 1; i <= 3; ++i) bench.push(i, kLarge, FrameOrder::any);
  bench.send();
  for (std::uint32_t i = 4; i < 1000; ++i) bench.push(i, i % 2 == 0 ? 0 : 8192, FrameOrder::any);
  const auto order = bench.receive_all();
  REQUIRE(order.size() == 999);
  CHECK(std::ranges::find(order, 2U) - order.begin() <= 1 + 64);
  CHECK(std::ranges::find(order, 3U) - std::ranges::find(order, 2U) <= 1 + 64);
  CHECK(std::ranges::find(order, 2U) - order.begin() >= 32);
}

TEST_CASE("send queue: memory is free once its own frame is sent, in whatever order") {
  Bench bench;
  const Ticket first = bench.push(1, kLarge, FrameOrder::any);
  bench.send();
  const Ticket second = bench.push(2, kLarge, FrameOrder::any);
  const Ticket small = bench.push(3, 4096, FrameOrder::any);
  CHECK_FALSE(bench.queue.is_sent(first));
  // The small one is in the socket once the first half of the second one is received.
  bench.receive(kLarge + kLarge / 2);
  CHECK(bench.queue.is_sent(first));
  CHECK(bench.queue.is_sent(small));
  CHECK_FALSE(bench.queue.is_sent(second));
  CHECK(bench.queue.sent() == 2);
  SUBCASE("what is copied needs no memory either") {
    bench.queue.disown();
    CHECK(bench.queue.is_sent(second));
    CHECK_FALSE(bench.queue.empty());
  }
  bench.receive_all();
  CHECK(bench.queue.is_sent(second));
  CHECK(bench.queue.sent() == 3);
  CHECK(bench.queue.empty());
}

}  // namespace
}  // namespace rtrs::tcp::send_queue_test
