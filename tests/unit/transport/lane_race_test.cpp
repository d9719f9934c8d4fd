// SPDX-License-Identifier: BSD-3-Clause
// The looks of a session's background thread at the race of a lane's connections.
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rdma/transport/client/lane_driver.hpp"
#include "tests/unit/core/client_failover_bench.hpp"

namespace rtrs::lane_race_test {
namespace {

using namespace std::chrono_literals;

/// Answers questions, if it is alive, and nothing else.
class FakeConnection final : public Connection {
 public:
  FakeConnection(bool alive, bool busy) : alive_{alive}, busy_{busy} {}

  Ticket write_with_immediate(RemoteMemory, ConstBytes, ConstBytes,
                              std::uint32_t immediate) override {
    if (immediate == wire::kHeartbeat) ++questions_;
    return ++posted_;
  }
  Ticket write(RemoteMemory, ConstBytes) override { return ++posted_; }
  Ticket send(ConstBytes) override { return ++posted_; }
  Ticket send_with_immediate(ConstBytes, std::uint32_t) override { return ++posted_; }
  Ticket send_with_invalidate(std::uint32_t) override { return ++posted_; }
  void post_receives(unsigned, std::uint32_t) override {}
  RemoteMemory expose(std::uint32_t, MutableBytes) override { return {}; }
  void withdraw(std::uint32_t) override {}
  void flush() override {}
  Ticket sent() const override { return posted_; }
  void disown_unsent() override {}

  Status progress(QueuePairHandler& handler) override {
    while (alive_ && questions_ > 0) {
      --questions_;
      CHECK(handler.on_write_with_immediate(wire::kHeartbeatAck, 0) == nullptr);
    }
    if (reads == last_read) return Status::closed;
    ++reads;
    return busy_ ? Status::more : Status::drained;
  }
  int descriptor() const override { return -1; }
  bool wants_to_write() const override { return false; }
  void close() override {}
  const std::string& failure() const override { return failure_; }

  int reads = 0;
  int last_read = -1;  ///< the end of the connection comes behind it; negative: never

 private:
  bool alive_;
  bool busy_;
  unsigned questions_ = 0;
  Ticket posted_ = 0;
  std::string failure_;
};

struct Owner final : LaneDriverOwner {
  void on_broken(PathLife, std::string) override { ++broken; }
  void on_busy() override {}

  int broken = 0;
};

/// One request on a path that says nothing, beside a path that lives.
struct LookBench {
  LookBench(bool quiet_is_unread, bool witness_is_busy) {
    attach(0, false, quiet_is_unread);
    attach(1, true, witness_is_busy);
    driver.with_lane([this](ClientLane& lane) {
      lane.use(0b01, PathPolicy::min_inflight);
      lane.submit(request);
    });
  }
  ~LookBench() { driver.shut_down(EIO); }
  void attach(unsigned path, bool alive, bool busy) {
    driver.attach({path, 1}, std::make_unique<FakeConnection>(alive, busy),
                  [&](ClientLane& lane, QueuePair& queue_pair) {
                    lane.attach(path, {.queue_pair = &queue_pair,
                                       .chunks = chunks[path],
                                       .queue_depth = 2,
                                       .chunk_size = 8192,
                                       .max_io_size = 4096,
                                       .exactly_once = true,
                                       .races = true});
                  });
  }
  unsigned moved_within(std::chrono::milliseconds time) {
    const auto end = std::chrono::steady_clock::now() + time;
    unsigned moved = 0;
    while (moved == 0 && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(20ms);
      moved = driver.look_at_race().moved;
    }
    return moved;
  }

  TestRequest request;
  std::vector<wire::ChunkAddress> chunks[2] = {std::vector<wire::ChunkAddress>(2),
                                               std::vector<wire::ChunkAddress>(2)};
  Owner owner;
  LaneDriver driver{0, 2, nullptr, nullptr, Duration::zero(), owner};
};

TEST_CASE("a witness that always has more to be received testifies all the same") {
  LookBench bench{/*quiet_is_unread=*/false, /*witness_is_busy=*/true};
  CHECK(bench.moved_within(10s) == 1);
}

TEST_CASE("a connection of which something may be unread is not judged") {
  LookBench bench{/*quiet_is_unread=*/true, /*witness_is_busy=*/false};
  CHECK(bench.moved_within(600ms) == 0);
}

TEST_CASE("a lane that nobody uses is read to its end when its peer has closed it") {
  Owner owner;
  LaneDriver driver{0, 2, nullptr, nullptr, Duration::zero(), owner};
  auto made = std::make_unique<FakeConnection>(/*alive=*/true, /*busy=*/true);
  FakeConnection& connection = *made;
  connection.last_read = 5;
  driver.attach({0, 1}, std::move(made), [](ClientLane&, QueuePair&) {});
  for (int i = 0; i < 10; ++i) driver.service();
  CHECK(connection.reads == 0);
  driver.on_hang_up();
  for (int i = 0; i < 10; ++i) driver.service();
  CHECK(connection.reads == 5);
  CHECK(owner.broken == 1);
  driver.detach(0);
  driver.shut_down(EIO);
}

}  // namespace
}  // namespace rtrs::lane_race_test
