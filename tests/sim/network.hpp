// SPDX-License-Identifier: BSD-3-Clause
// All connections of a run, for those who make and who break them.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/sim/server_node.hpp"
#include "tests/sim/wire.hpp"

namespace sim {

class Network {
 public:
  Network(World& world, const NetworkKnobs& knobs, ServerNode& server, ServerNode& foreign)
      : world_{world}, knobs_{knobs}, server_{server}, foreign_{foreign} {}

  /// A new session of a client; the number is never used twice.
  std::uint64_t new_session(NodeId client) {
    server_.introduce(++sessions_, client);
    foreign_.introduce(sessions_, client);
    return sessions_;
  }
  /// `elsewhere`: to the server that no client means.
  std::shared_ptr<Wire> open(std::uint64_t session, unsigned path, std::uint16_t cid,
                             bool elsewhere) {
    ServerNode& server = elsewhere ? foreign_ : server_;
    std::erase_if(wires_, [](const auto& wire) { return wire->over() && wire.use_count() == 1; });
    wires_.push_back(
        std::make_shared<Wire>(world_, knobs_, session, cid,
                               [&server](std::shared_ptr<Wire> wire, rtrs::ConstBytes record) {
                                 server.accept(std::move(wire), record);
                               }));
    wires_.back()->set_path(path);
    const auto obstacle = obstacles_.find({session, path});
    if (obstacle != obstacles_.end()) wires_.back()->set_obstacle(obstacle->second);
    return wires_.back();
  }
  /// Until clear().
  void obstruct(std::uint64_t session, unsigned path, const Obstacle& obstacle) {
    obstacles_[{session, path}] = obstacle;
    for (const auto& wire : wires_) {
      if (wire->session() == session && wire->path() == path) wire->set_obstacle(obstacle);
    }
  }
  /// Since when a path lets no message of `bytes` through; none if it does.
  std::optional<Instant> blocks(std::uint64_t session, unsigned path, Side from,
                                std::size_t bytes) const {
    const auto found = obstacles_.find({session, path});
    if (found == obstacles_.end()) return std::nullopt;
    const Obstacle& obstacle = found->second;
    if (bytes <= obstacle.largest[from == Side::client ? 0 : 1]) return std::nullopt;
    return obstacle.since;
  }
  bool is_obstructed(std::uint64_t session, unsigned path) const {
    return obstacles_.contains({session, path});
  }
  void clear() {
    obstacles_.clear();
    for (const auto& wire : wires_) wire->end_obstacle();
  }
  /// Also those that are over.
  const std::vector<std::shared_ptr<Wire>>& wires() const { return wires_; }

 private:
  World& world_;
  const NetworkKnobs& knobs_;
  ServerNode& server_;
  ServerNode& foreign_;
  std::uint64_t sessions_ = 0;
  std::vector<std::shared_ptr<Wire>> wires_;
  std::map<std::pair<std::uint64_t, unsigned>, Obstacle> obstacles_;  ///< by session and path
};

}  // namespace sim
