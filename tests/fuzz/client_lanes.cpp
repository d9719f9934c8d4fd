// SPDX-License-Identifier: BSD-3-Clause
// Input: what both sides agreed on (1), then a script of what happens to a client's lane that has
// several paths, and of what a hostile server says on them, one step after another. Each begins
// with its number (1) and a path (1):
//   0                                      the path is up
//   1                                      it is lost
//   2 request (1)                          a request is submitted, or given up if it is there
//   3 permit (1), error (1), bytes (2)     an answer on the path
//   4 immediate (4), bytes (2)             something with an immediate
//   5 immediate (4), length (1), message   a message
//   6                                      a heartbeat interval
//   7 allowed (1)                          the server thinks otherwise of the path
//   8 paths (1), policy (1)                other paths are used
//   9                                      the server has forgotten the session
//   10 error (1)                           waiting is given up
//   11                                     the path's changes are given up
//   12                                     what has waited for long ends
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "rdma/core/client/lane.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/queue_pair.hpp"

using namespace rtrs;
using namespace std::chrono_literals;

namespace {

constexpr unsigned kPaths = 3;
constexpr std::uint16_t kSlots = 3;
constexpr std::uint32_t kMaxIo = 4096;

/// Takes everything, and knows which memory the server may write to.
class FakeQueuePair final : public fuzz::SilentQueuePair {
 public:
  std::array<MutableBytes, kSlots> exposed{};
  Ticket posts = 0;

  Ticket write_with_immediate(RemoteMemory, ConstBytes, ConstBytes, std::uint32_t) override {
    return ++posts;
  }
  RemoteMemory expose(std::uint32_t window, MutableBytes memory) override {
    fuzz::require(exposed.at(window).empty(), "a window is exposed once");
    exposed.at(window) = memory;
    return {window, window};
  }
  void withdraw(std::uint32_t window) override { exposed.at(window) = {}; }
  Ticket sent() const override { return posts; }
};

struct Asked final : Request {
  explicit Asked(bool read) {
    is_read = read;
    message = text;
    if (read) read_data = data;
    if (!read) write_data = data;
    scope = &counter;
    context = this;
    done = [](ClientLane&, Request& request) {
      auto& self = *static_cast<Asked*>(request.context);
      fuzz::require(self.pending, "a request that is not there has no end");
      self.pending = false;
    };
    renew = [](Request& request) {
      fuzz::require(static_cast<Asked*>(request.context)->pending, "what is renewed is there");
    };
  }
  std::array<std::byte, 16> text{};
  std::array<std::byte, 512> data{};
  std::shared_ptr<Unresolved> counter = std::make_shared<Unresolved>();
  bool pending = false;
};

class Script {
 public:
  explicit Script(std::uint8_t agreed)
      : exactly_once_{(agreed & 1) != 0},
        new_rkey_{(agreed & 2) != 0},
        lane_{0, kSlots, &barrier_} {
    if ((agreed & 4) != 0) lane_.keep_order();
    barrier_.on_end = [this] { lane_.resume(); };
    for (unsigned i = 0; i < 6; ++i) requests_.push_back(std::make_unique<Asked>(i % 2 == 1));
  }
  ~Script() {
    for (unsigned path = 0; path < kPaths; ++path) detach(path);
    lane_.shut_down(ESHUTDOWN);
    for (const auto& request : requests_) {
      fuzz::require(!request->pending, "everything has an end when all paths are gone for good");
    }
  }

  void step(fuzz::Input& input) {
    now_ += 100ms;
    const auto kind = input.take<std::uint8_t>() % 13;
    const unsigned path = input.take<std::uint8_t>() % kPaths;
    switch (kind) {
      case 0:
        return attach(path);
      case 1:
        return detach(path);
      case 2:
        return ask(*requests_[input.take<std::uint8_t>() % requests_.size()]);
      case 3: {
        const std::uint32_t permit = input.take<std::uint8_t>() % (kSlots + 1U);
        const int error = input.take<std::uint8_t>();
        return tell(path, encode(wire::ResponseImmediate{permit, error}), bytes(input));
      }
      case 4: {
        const auto immediate = input.take<std::uint32_t>();
        return tell(path, immediate, bytes(input));
      }
      case 5:
        return message(path, input);
      case 6:
        if (lane_.attached(path) && !lane_.probe(path, 2, now_)) detach(path);
        return;
      case 7:
        if (lane_.attached(path)) lane_.allow(path, (input.take<std::uint8_t>() & 1) != 0);
        return;
      case 8:
        return lane_.use(static_cast<PathMask>(1U << path | input.take<std::uint8_t>()),
                         static_cast<PathPolicy>(input.take<std::uint8_t>() % 3));
      default:
        return rarely(kind, path, input);
    }
  }

 private:
  void rarely(int kind, unsigned path, fuzz::Input& input) {
    if (kind == 9 && !lane_.attached()) lane_.renew();
    if (kind == 10) lane_.fail_pending(1 + input.take<std::uint8_t>() % 100);
    if (kind == 11 && !lane_.attached(path)) lane_.fail_stranded(path, EIO);
    if (kind == 12 && lane_.overdue(now_ - 1s)) close(lane_.fail_overdue(now_ - 1s, EIO));
  }
  static std::uint32_t bytes(fuzz::Input& input) { return input.take<std::uint16_t>() % 5000U; }

  void attach(unsigned path) {
    if (lane_.attached(path)) return;
    queue_pairs_[path] = {};
    chunks_[path].assign(kSlots, {0x1000, path});
    lane_.attach(path, {.queue_pair = &queue_pairs_[path],
                        .chunks = chunks_[path],
                        .queue_depth = kSlots,
                        .chunk_size = 2 * kMaxIo,
                        .max_io_size = kMaxIo,
                        .new_rkey = new_rkey_,
                        .exactly_once = exactly_once_});
  }
  void detach(unsigned path) {
    if (lane_.attached(path)) lane_.detach(path, now_);
  }
  void close(PathMask paths) {
    for (unsigned path = 0; path < kPaths; ++path) {
      if ((paths >> path & 1) != 0) detach(path);
    }
  }
  void ask(Asked& request) {
    if (request.pending) {
      lane_.cancel(request);
      request.pending = false;
    } else {
      request.pending = true;
      lane_.submit(request);
    }
  }
  void tell(unsigned path, std::uint32_t immediate, std::uint32_t bytes) {
    if (!lane_.attached(path)) return;
    if (lane_.connection(path).on_write_with_immediate(immediate, bytes) != nullptr) detach(path);
  }
  void message(unsigned path, fuzz::Input& input) {
    std::array<std::byte, 32> room{};
    const auto immediate = input.take<std::uint32_t>();
    const std::size_t length = input.take<std::uint8_t>() % room.size();
    for (std::size_t i = 0; i < length; ++i) room[i] = input.take<std::byte>();
    if (!lane_.attached(path)) return;
    const auto refused = lane_.connection(path).on_message(
        ConstBytes{room}.first(length), length % 2 == 0 ? std::optional{immediate} : std::nullopt);
    if (refused != nullptr) detach(path);
  }

  const bool exactly_once_;
  const bool new_rkey_;
  Instant now_{};
  std::array<FakeQueuePair, kPaths> queue_pairs_;
  std::array<std::vector<wire::ChunkAddress>, kPaths> chunks_;
  std::vector<std::unique_ptr<Asked>> requests_;
  Unresolved barrier_;
  ClientLane lane_;
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  Script script{input.take<std::uint8_t>()};
  while (!input.rest().empty()) script.step(input);
  return 0;
}
