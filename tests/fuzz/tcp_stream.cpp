// SPDX-License-Identifier: BSD-3-Clause
// Input: one byte (bit 0: header digests, bit 1: data digests), one byte (size of the pieces that
// arrive), then what a peer sends. In any case, only memory that is exposed may change.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "rdma/transport/tcp/queue_pair.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace {

constexpr std::uint32_t kMessageSize = 16;
constexpr std::size_t kArea = 256;
constexpr std::byte kUntouched{0xC5};

/// Two windows with guards around them: the first is exposed, the second was withdrawn.
struct Memory {
  std::array<std::byte, 5 * kArea> bytes;
  Memory() { bytes.fill(kUntouched); }
  rtrs::MutableBytes exposed() { return rtrs::MutableBytes{bytes}.subspan(kArea, kArea); }
  rtrs::MutableBytes withdrawn() { return rtrs::MutableBytes{bytes}.subspan(3 * kArea, kArea); }
  bool intact() const {
    const auto untouched = [](std::byte byte) { return byte == kUntouched; };
    return std::all_of(bytes.begin(), bytes.begin() + kArea, untouched) &&
           std::all_of(bytes.begin() + 2 * kArea, bytes.end(), untouched);
  }
};

class Handler final : public rtrs::QueuePairHandler {
 public:
  unsigned arrivals = 0;

  rtrs::Complaint on_write_with_immediate(std::uint32_t, std::uint32_t bytes) override {
    fuzz::require(bytes <= kArea, "no write is longer than its window");
    ++arrivals;
    return nullptr;
  }
  rtrs::Complaint on_message(rtrs::ConstBytes message, std::optional<std::uint32_t>) override {
    fuzz::require(message.size() <= kMessageSize, "no message is longer than its receive");
    ++arrivals;
    return nullptr;
  }
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using Status = rtrs::Connection::Status;
  fuzz::Input input{data, size};
  const auto options = input.take<std::uint8_t>();
  const std::size_t piece = std::size_t{1} + input.take<std::uint8_t>();
  std::array<int, 2> sockets{};
  fuzz::require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets.data()) == 0,
                "a pair of sockets was made");
  Memory memory;
  Handler handler;
  {
    rtrs::tcp::TcpQueuePair queue_pair{rtrs::tcp::Stream{sockets[0]},
                                       {.header = (options & 1) != 0, .data = (options & 2) != 0}};
    queue_pair.expose(0, memory.exposed());
    queue_pair.expose(1, memory.withdrawn());
    queue_pair.withdraw(1);
    queue_pair.post_receives(2, kMessageSize);
    queue_pair.post_receives(4, 0);
    auto rest = input.rest();
    auto status = Status::drained;
    while (!rest.empty() && (status == Status::drained || status == Status::more)) {
      const auto now = rest.first(std::min(piece, rest.size()));
      fuzz::require(write(sockets[1], now.data(), now.size()) == static_cast<ssize_t>(now.size()),
                    "a small write never blocks");
      rest = rest.subspan(now.size());
      status = queue_pair.progress(handler);
    }
    fuzz::require((status == Status::broken) == !queue_pair.failure().empty(),
                  "a broken connection says why");
  }
  close(sockets[1]);
  fuzz::require(handler.arrivals <= 6, "every arrival took a posted receive");
  fuzz::require(memory.intact(), "memory that is not exposed does not change");
  return 0;
}
