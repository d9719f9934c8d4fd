// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/server_node.hpp"

#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "tests/sim/server_process.hpp"

namespace sim {
namespace {

/// Each one that replaces another stays, and a loss of power looks at all of them.
constexpr std::size_t kMaxDisks = 100;

}  // namespace

/// On a disk of the server's machine that loses nothing.
class KeptReservations final : public rnbd::WriterStore {
 public:
  KeptReservations(bool knows_all, WriterRecords records)
      : knows_all_{knows_all}, records_{std::move(records)} {}
  const WriterRecords& records() const { return records_; }
  bool knows_all() const override { return knows_all_; }
  tl::expected<rnbd::WriterRecord, std::string> load(const rnbd::wire::Uuid& storage) override {
    return records_[storage];
  }
  tl::expected<void, std::string> save(const rnbd::wire::Uuid& storage,
                                       const rnbd::WriterRecord& record) override {
    records_[storage] = record;
    return {};
  }

 private:
  const bool knows_all_;
  WriterRecords records_;
};

ServerNode::ServerNode(World& world, const Knobs& knobs, Disks& disks, Checker& checker,
                       const ServerNode* original)
    : world_{world},
      knobs_{knobs},
      disks_{disks},
      checker_{checker},
      original_{original},
      node_{world.add_node()},
      scope_{world, node_},
      volatile_epoch_{world.rng().next()},
      reservations_{std::make_shared<KeptReservations>(knobs.knows_all_writers, WriterRecords{})} {
  for (const Disk& disk : disks) exports_.push_back(disk.number());
  if (original_ == nullptr || !knobs.clone_answers || knobs.clone_copied == 0ms) return;
  scope_.after(knobs.clone_copied, [this] { copied_ = original_->reservations_->records(); });
}

ServerNode::~ServerNode() = default;

std::uint64_t ServerNode::id() const {
  constexpr std::uint64_t kServers = 2;
  if (knobs_.identity == Identity::none) return 0;
  const unsigned life = knobs_.identity == Identity::kept ? 1 : starts_;
  return kServers * life + (original_ != nullptr && !knobs_.clone ? 1 : 0);
}

void ServerNode::start() {
  world_.note("server", 0, "starts");
  const bool again = starts_++ > 0;
  const bool replaces = again && !calm_ && original_ == nullptr && disks_.size() < kMaxDisks;
  if (replaces && world_.rng().chance(knobs_.faults.replace)) replace_something();
  access_ = {};
  checker_.server_started();
  process_ = std::make_unique<ServerProcess>(
      world_, knobs_, queue_depth(), disks_, exports_, checker_,
      ServerFace{node_, id(), volatile_epoch_, original_ != nullptr}, reservations_);
  if (calm_) process_->calm();
}

/// Now and then an administrator lets clients have more under way.
std::uint16_t ServerNode::queue_depth() const {
  if (original_ != nullptr && knobs_.clone_answers) return original_->queue_depth();
  return static_cast<std::uint16_t>(knobs_.queue_depth + (starts_ - 1) / 2);
}

/// An export shows other storage from now on, or the same one with another size, which is as good
/// as another one for those who have it open.
void ServerNode::replace_something() {
  Rng& rng = world_.rng();
  const auto slot = static_cast<unsigned>(rng.below(exports_.size()));
  DiskKnobs knobs = disks_[exports_[slot]].knobs();
  const auto number = static_cast<unsigned>(disks_.size());
  if (rng.chance(500)) {
    knobs.uuid[1] = static_cast<std::uint8_t>(number);
    knobs.uuid[2] = static_cast<std::uint8_t>(number >> 8);
  } else {
    knobs.size += 512 * number;
  }
  world_.note("server", 0, "serves another disk", slot, number);
  disks_.emplace_back(number, slot, knobs);
  exports_[slot] = number;
}

void ServerNode::kill(bool power_loss) {
  stopping_.reset();
  if (!process_) return;
  world_.note("server", 0, power_loss ? "loses power" : "is killed");
  checker_.server_ends();
  process_->kill();
  if (world_.broken()) return;
  process_.reset();
  if (!power_loss) return;
  volatile_epoch_ = world_.rng().next();
  for (Disk& disk : disks_) {
    const std::uint64_t lost = disk.crash(world_.rng());
    checker_.power_lost(disk.number());
    if (lost == disk.sectors()) continue;
    world_.violate("sector " + std::to_string(lost) + " of " + disk.name() +
                   " lost a value that was acknowledged as durable");
  }
}

void ServerNode::stop() {
  if (!process_) return;
  world_.note("server", 0, "stops");
  checker_.server_ends();
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

void ServerNode::set_access(unsigned listener, rtrs::wire::PathAccess access) {
  world_.note("server", 0, rtrs::wire::to_string(access), listener);
  access_[listener] = access;
  // From the process's own event loop, which may have been stopped, and told several things since.
  scope_.soon([this, listener] {
    if (process_) process_->set_access(listener, access_[listener]);
  });
}

void ServerNode::introduce(std::uint64_t session, NodeId client) {
  if (clients_.size() <= session) clients_.resize(session + 1);
  clients_[session] = client;
}

void ServerNode::accept(std::shared_ptr<Wire> wire, rtrs::ConstBytes record) {
  // From the process's own event loop, which may be stopped at the moment.
  scope_.soon(
      [this, wire = std::move(wire), bytes = std::vector<std::byte>{record.begin(), record.end()}] {
        if (wire->is_welcome()) receive(wire->session());
        if (!process_) return wire->close(Side::server);  // connection refused
        process_->accept(wire, bytes, clients_[wire->session()]);
      });
}

/// A clone is, for each session, as it was when it was made. Numbers of others would be news. It
/// gives none where it has no record.
void ServerNode::receive(std::uint64_t visitor) {
  world_.note("clone", visitor, "lets a session in");
  const std::uint64_t last = std::exchange(visitor_, visitor);
  if (last == visitor || (last != 0 && copied_.empty())) return;
  kill(/*power_loss=*/false);
  reservations_ = std::make_shared<KeptReservations>(/*knows_all=*/true, copied_);
  if (!world_.broken()) start();
}

/// A writer is told what its session found when it came first.
std::uint64_t ServerNode::generation(unsigned slot, bool to_writer) const {
  const WriterRecords& records = to_writer ? copied_ : reservations_->records();
  const auto found = records.find(disks_[slot].knobs().uuid);
  if (found == records.end() || found->second.origin == 0) return rnbd::wire::kNoWriterYet;
  return std::uint64_t{found->second.origin} << 32 | found->second.last;
}

void ServerNode::knock() {
  scope_.soon([this] {
    if (process_) process_->knock();
  });
}

std::string ServerNode::leftovers() { return process_ ? process_->leftovers() : ""; }

}  // namespace sim
