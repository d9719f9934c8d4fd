#include "tests/sim/server_node.hpp"

#include "tests/sim/server_process.hpp"

namespace sim {

ServerNode::ServerNode(World& world, const Knobs& knobs, std::vector<Disk>& disks, Checker& checker)
    : world_{world},
      knobs_{knobs},
      disks_{disks},
      checker_{checker},
      node_{world.add_node()},
      scope_{world, node_} {}

ServerNode::~ServerNode() = default;

void ServerNode::start() {
  world_.note("server", 0, "starts");
  process_ = std::make_unique<ServerProcess>(world_, knobs_, disks_, checker_, node_);
  if (calm_) process_->calm();
}

void ServerNode::kill(bool power_loss) {
  stopping_.reset();
  if (!process_) return;
  world_.note("server", 0, power_loss ? "loses power" : "is killed");
  process_->kill();
  if (world_.broken()) return;
  process_.reset();
  if (!power_loss) return;
  for (Disk& disk : disks_) {
    const std::uint64_t lost = disk.crash(world_.rng());
    if (lost == disk.sectors()) continue;
    world_.violate("sector " + std::to_string(lost) + " of " + disk.name() +
                   " lost a value that was acknowledged as durable");
  }
}

void ServerNode::stop() {
  if (!process_) return;
  world_.note("server", 0, "stops");
  process_->drain();
  // Shorter than a peer's patience, for who drains does not answer.
  stopping_.emplace(world_, node_);
  stopping_->after(world_.rng().delay(0us, knobs_.heartbeat_interval / 2),
                   [this] { kill(/*power_loss=*/false); });
}

void ServerNode::calm() {
  calm_ = true;
  if (process_) process_->calm();
}

void ServerNode::introduce(std::uint64_t session, NodeId client) {
  if (clients_.size() <= session) clients_.resize(session + 1);
  clients_[session] = client;
}

void ServerNode::accept(std::shared_ptr<Wire> wire, rtrs::ConstBytes record) {
  // From the process's own event loop, which may be stopped at the moment.
  scope_.soon(
      [this, wire = std::move(wire), bytes = std::vector<std::byte>{record.begin(), record.end()}] {
        if (!process_) return wire->close(Side::server);  // connection refused
        process_->accept(wire, bytes, clients_[wire->session()]);
      });
}

std::string ServerNode::leftovers() { return process_ ? process_->leftovers() : ""; }

}  // namespace sim
