// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/simulation.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/sim/nemesis.hpp"

namespace sim {
namespace {

/// Storage that hangs until the faults are over can leave nothing to do but connecting again, for
/// minutes: the faults are over after so many events at the latest.
constexpr std::uint64_t kMaxSafetyEvents = 5'000'000;

/// A run that goes on for so long goes in circles.
constexpr std::uint64_t kMaxEvents = 50'000'000;

class Simulation {
 public:
  Simulation(std::uint64_t seed, bool trace, bool long_run)
      : world_{seed, trace},
        knobs_{draw_knobs(world_.rng(), long_run)},
        disks_{make_disks(knobs_)},
        checker_{world_, disks_},
        server_{world_, knobs_, disks_, checker_, /*original=*/nullptr},
        foreign_disks_{make_disks(knobs_)},
        foreign_checker_{world_, foreign_disks_},
        foreign_{world_, knobs_, foreign_disks_, foreign_checker_, &server_},
        network_{world_, knobs_.network, server_, foreign_},
        nemesis_{world_, knobs_, network_, server_, clients_} {
    const ClientEnvironment environment{
        world_,
        knobs_,
        disks_,
        checker_,
        network_,
        server_.node(),
        server_.id(),
        [this](unsigned slot) { return server_.disk_of(slot); },
        [this](unsigned slot, bool to_writer) { return foreign_.generation(slot, to_writer); }};
    for (unsigned i = 0; i < knobs_.clients.size(); ++i) {
      clients_.push_back(std::make_unique<ClientNode>(environment, i, knobs_.clients[i]));
    }
  }

  Verdict run() {
    safety_phase();
    liveness_phase();
    return {world_.violation(), world_.trace_hash(), world_.events(), checker_.operations()};
  }
  bool broken() const { return world_.broken(); }

 private:
  static Disks make_disks(const Knobs& knobs) {
    Disks disks;
    for (const DiskKnobs& disk : knobs.disks) {
      const auto number = static_cast<unsigned>(disks.size());
      disks.emplace_back(number, number, disk);
    }
    return disks;
  }

  void safety_phase() {
    server_.start();
    foreign_.start();
    for (auto& client : clients_) client->start();
    nemesis_.start();
    const Instant end = world_.now() + knobs_.safety_time;
    while (checker_.operations() < knobs_.operations && world_.now() < end &&
           world_.events() < kMaxSafetyEvents && step()) {
    }
  }

  void liveness_phase() {
    world_.note("nemesis", 0, "faults are over");
    nemesis_.heal();
    server_.calm();
    foreign_.calm();
    for (auto& client : clients_) client->finish();
    // Each of these may have to be waited out once or twice, one after the other.
    const Instant deadline = world_.now() + 20 * knobs_.heartbeat_limit() +
                             5 * (knobs_.connect_timeout + knobs_.handshake_timeout) +
                             10 * knobs_.storage.stall_max + 20 * knobs_.longest_transfer() + 10s;
    const auto all_left = [this] {
      return std::all_of(clients_.begin(), clients_.end(), [](auto& c) { return c->left(); });
    };
    while (!all_left() && world_.now() < deadline && step()) {
    }
    for (auto& client : clients_) {
      if (!client->left()) {
        world_.violate("after the faults were over a client waits for ever for " + client->wait());
      }
    }
    for (ServerNode* server : {&server_, &foreign_}) {
      while (!server->leftovers().empty() && world_.now() < deadline && step()) {
      }
      const std::string leftovers = server->leftovers();
      if (leftovers.empty()) continue;
      world_.violate("all clients have left, but the server still has " + leftovers);
    }
  }

  bool step() {
    if (world_.events() > kMaxEvents) world_.violate("the run does not come to an end");
    return world_.step();
  }

  World world_;
  Knobs knobs_;
  Disks disks_;
  Checker checker_;
  ServerNode server_;
  Disks foreign_disks_;
  Checker foreign_checker_;
  ServerNode foreign_;
  Network network_;
  std::vector<std::unique_ptr<ClientNode>> clients_;
  Nemesis nemesis_;
};

}  // namespace

Verdict run_seed(std::uint64_t seed, bool trace, bool long_run) {
  auto simulation = std::make_unique<Simulation>(seed, trace, long_run);
  Verdict verdict = simulation->run();
  if (simulation->broken()) {
    // It stopped in the middle of something: its objects cannot be taken apart any more.
    static std::vector<Simulation*> broken;
    broken.push_back(simulation.release());
  }
  return verdict;
}

}  // namespace sim
