// SPDX-License-Identifier: BSD-3-Clause
// Two TCP queue pairs over loopback, driven by one thread.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <utility>

#include "rdma/transport/tcp/queue_pair.hpp"
#include "tests/conformance/suite.hpp"

namespace rtrs::conformance {

/// A connected pair of non-blocking sockets.
inline std::array<int, 2> connected_sockets() {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* raw = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, raw, size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, raw, &size) != 0) {
    throw std::runtime_error{"cannot listen on loopback"};
  }
  const int left = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(left, raw, size) != 0) throw std::runtime_error{"cannot connect on loopback"};
  const int right = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  close(listener);
  fcntl(left, F_SETFL, fcntl(left, F_GETFL) | O_NONBLOCK);
  // Each message arrives at once, whatever was sent before.
  const int on = 1;
  for (const int end : {left, right}) setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return {left, right};
}

/// Both ends in clear.
struct InClear {
  static std::array<tcp::Stream, 2> streams() {
    const auto sockets = connected_sockets();
    return {tcp::Stream{sockets[0]}, tcp::Stream{sockets[1]}};
  }
};

template <bool kDigests, class Security = InClear>
class TcpFixture {
 public:
  TcpFixture() : TcpFixture{Security::streams()} {}

  QueuePair& left() { return left_.queue_pair; }
  QueuePair& right() { return right_.queue_pair; }
  Recorder& heard_by_left() { return left_.recorder; }
  Recorder& heard_by_right() { return right_.recorder; }
  bool left_failed() const { return left_.failed; }
  bool right_failed() const { return right_.failed; }
  const std::string& why_right_failed() { return right_.queue_pair.failure(); }
  void close_left() { left_.close(); }
  void share_right(MutableBytes) {}
  void share_left(MutableBytes) {}
  Regions& regions_right() { return *right_.regions; }
  static constexpr bool kKeysEnd = true;

  void settle() {
    for (int quiet = 0; quiet < 2;) {
      const bool left = left_.move();
      const bool moved = right_.move() || left;
      std::array<pollfd, 2> descriptors{left_.interest(), right_.interest()};
      const bool ready = poll(descriptors.data(), 2, 5) > 0;
      quiet = moved || ready ? 0 : quiet + 1;
    }
  }

 private:
  struct Side {
    explicit Side(tcp::Stream stream)
        : regions{std::make_shared<tcp::RegionTable>()},
          queue_pair{std::move(stream), tcp::Digests{kDigests, kDigests}, regions} {}

    bool move() {
      if (failed) return false;
      const std::size_t before = recorder.events.size();
      const auto status = queue_pair.progress(recorder);
      if (status == Connection::Status::closed || status == Connection::Status::broken) close();
      return recorder.events.size() != before || status == Connection::Status::more;
    }
    /// Only what was flushed waits for the socket to become writable.
    pollfd interest() const { return {failed ? -1 : queue_pair.descriptor(), POLLIN, 0}; }
    void close() {
      queue_pair.close();
      failed = true;
    }

    std::shared_ptr<tcp::RegionTable> regions;
    tcp::TcpQueuePair queue_pair;
    Recorder recorder;
    bool failed = false;
  };

  explicit TcpFixture(std::array<tcp::Stream, 2> streams)
      : left_{std::move(streams[0])}, right_{std::move(streams[1])} {}

  Side left_;
  Side right_;
};

using TcpWithDigests = TcpFixture<true>;
using TcpWithoutDigests = TcpFixture<false>;

}  // namespace rtrs::conformance
