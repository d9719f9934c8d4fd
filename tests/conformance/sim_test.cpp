// SPDX-License-Identifier: BSD-3-Clause
// The simulator's queue pair passes what real transports pass; what it calls a broken rule counts
// as a broken connection.
#include <memory>

#include "tests/conformance/regions_suite.hpp"
#include "tests/sim/sim_queue_pair.hpp"

namespace rtrs::conformance::sim_test {
namespace {

/// Two queue pairs on one simulated wire. `kStream`: with the habits of TCP, else of verbs.
template <bool kStream>
class SimFixture {
 public:
  SimFixture()
      : world_{1, false},
        knobs_{.stream = kStream,
               .latency_max = std::chrono::milliseconds{1},
               .departure_max = std::chrono::milliseconds{1},
               .poll_max = std::chrono::milliseconds{1},
               .transport_timeout = std::chrono::seconds{1}},
        wire_{std::make_shared<sim::Wire>(world_, knobs_, 1, 0,
                                          [](std::shared_ptr<sim::Wire>, ConstBytes) {})},
        left_{wire_, sim::Side::client, keys_left_, {}},
        right_{wire_, sim::Side::server, keys_right_, {.regions = &regions_}} {}

  QueuePair& left() { return left_.queue_pair; }
  QueuePair& right() { return right_.queue_pair; }
  Recorder& heard_by_left() { return left_.recorder; }
  Recorder& heard_by_right() { return right_.recorder; }
  bool left_failed() const { return left_.failed || world_.broken(); }
  bool right_failed() const { return right_.failed || world_.broken(); }
  void close_left() { left_.queue_pair.close(); }
  void share_right(MutableBytes) {}
  void share_left(MutableBytes) {}
  Regions& regions_right() { return regions_; }
  static constexpr bool kKeysEnd = true;

  void settle() {
    do {
      left_.move();
      right_.move();
    } while (world_.step());
  }

 private:
  struct Side {
    Side(std::shared_ptr<sim::Wire> wire, sim::Side side, sim::KeySource& keys,
         sim::SimQueuePair::Options options)
        : queue_pair{std::move(wire), side, keys, options} {}

    void move() {
      auto status = sim::SimQueuePair::Status::more;
      while (!failed && status == sim::SimQueuePair::Status::more) {
        unsigned heard = 0;
        status = queue_pair.progress(recorder, heard);
      }
      if (status != sim::SimQueuePair::Status::ended || failed) return;
      failed = true;
      queue_pair.close();
    }

    sim::SimQueuePair queue_pair;
    Recorder recorder;
    bool failed = false;
  };

  sim::World world_;
  sim::NetworkKnobs knobs_;
  sim::KeySource keys_left_{world_, false};
  sim::KeySource keys_right_{world_, false};
  sim::SimRegions regions_{world_, 0};
  std::shared_ptr<sim::Wire> wire_;
  Side left_;
  Side right_;
};

using SimLikeTcp = SimFixture<true>;
using SimLikeVerbs = SimFixture<false>;
TEST_CASE_TEMPLATE_INVOKE(queue_pair_conformance, SimLikeTcp, SimLikeVerbs);
TEST_CASE_TEMPLATE_INVOKE(regions_conformance, SimLikeTcp, SimLikeVerbs);

}  // namespace
}  // namespace rtrs::conformance::sim_test
