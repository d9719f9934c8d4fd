// SPDX-License-Identifier: BSD-3-Clause
// A brick with its clients, memory, tier and network in a simulated world. The world knows
// everything, so it can tell at once when a rule of bridge/backend/brick/brick.hpp is broken.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "bridge/backend/brick/brick.hpp"
#include "tests/sim/rng.hpp"

namespace sim {

namespace brick = rnbd::brick;

/// A rule is broken.
struct BrickViolation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline constexpr unsigned kCells = 2;  ///< that a block consists of here
using Cells = std::array<std::uint64_t, kCells>;

/// The content of an allocated block, and all that a crash may leave of it.
struct BlockTruth {
  Cells now{};
  std::array<std::set<std::uint64_t>, kCells> lasting{{{0}, {0}}};
};

/// A key at the brick's network card.
struct SimKey {
  brick::Block block = 0;
  brick::Slot slot = 0;
  brick::Path path = 0;
  brick::Session session = 0;
  std::uint32_t rights = 0;
  bool alive = true;
  bool ended = false;  ///< its client was told so
};

/// A one-sided write that has not landed.
struct SimWrite {
  std::uint64_t map = 0;
  unsigned cell = 0;
  std::uint64_t value = 0;
};

/// A map as its client knows it.
struct ClientMap {
  brick::Block block = 0;
  std::uint64_t generation = 0;
  std::uint64_t key = 0;
  std::uint32_t rights = 0;
};

struct SimClient {
  brick::Session session = 0;
  brick::Path path = 0;  ///< 0: none
  std::vector<ClientMap> maps{};
  std::uint32_t number = 0;
  std::uint32_t settled = 0;
  std::uint32_t under_way = 0;  ///< number of its MAP that has no answer
  bool stubborn = false;        ///< gives nothing back
  bool recalled = false;
};

class BrickWorld final : public brick::BrickHost {
 public:
  BrickWorld(std::uint64_t seed, bool trace);
  /// Errors: BrickViolation.
  void run();
  std::uint64_t operations() const { return operations_; }

  // BrickHost
  void answer(brick::Ticket ticket, const brick::Reply& reply) override;
  void record(const std::vector<brick::Record>& records) override;
  void store(const brick::StoreJob& job) override;
  void load(brick::Slot slot, brick::Place place, std::uint64_t job) override;
  void zero(brick::Slot slot) override {
    say("zero slot " + std::to_string(slot));
    memory_[slot] = {};
  }
  void open(brick::Block block, brick::Slot slot) override {
    say("open " + std::to_string(block) + " in slot " + std::to_string(slot));
    open_[block] = slot;
  }
  bool close(brick::Block block) override;
  bool dirty(brick::Slot slot) const override { return dirty_[slot] != 0; }
  void expose(const brick::NewMap& wanted) override;
  void retire(std::uint64_t map) override;
  void recall(brick::Session session) override;
  void kill(brick::Path path) override;

 private:
  using Work = std::function<void()>;
  using Then = std::function<void(const brick::Reply&)>;
  struct Mood {
    unsigned steps = 400;
    unsigned crash = 5;  ///< in thousandths
    unsigned lose = 20;  ///< likewise: a path
    unsigned stubborn = 300;
    unsigned deliver = 500;
  };

  [[noreturn]] void fail(const std::string& text) const { throw BrickViolation(text); }
  void say(const std::string& text) const;
  void later(Work work) { events_.push_back(std::move(work)); }
  brick::Ticket ask(Then then);
  /// Nobody else changes whether the block is allocated, or its content two-sided.
  bool lock(brick::Block block) { return locked_.insert(block).second; }
  void start(const std::vector<brick::Record>& log);
  void step(bool requests);
  void deliver();
  void crash();
  void check_restart(const std::vector<brick::Kept>& kept);
  std::vector<brick::Kept> replay(const std::vector<brick::Record>& log) const;
  void finish();
  void compare();

  void act(SimClient& client);
  void connect(SimClient& client);
  void lose_path(SimClient& client);
  void leave(SimClient& client);
  void alloc();
  void free();
  void map(SimClient& client);
  void send_map(std::size_t client, const brick::Brick::MapOrder& order);
  void mapped(std::size_t client, const brick::Brick::MapOrder& order, const brick::Reply& reply);
  void unmap(SimClient& client, std::size_t which, bool drain);
  void give_back(SimClient& client);
  void write_one_sided(SimClient& client);
  void read_one_sided(SimClient& client);
  void land(std::size_t write);
  void sync(SimClient& client);
  void flush();
  void ask_durable(const std::vector<brick::Block>& blocks, Work order, brick::Ticket ticket);
  void request(bool write);
  void touch(brick::Block block, brick::Slot slot, bool write, unsigned cell, std::uint64_t value);
  void unpin(brick::Block block);
  void list();
  void took(brick::Block block, unsigned cell, std::uint64_t value);
  void revoked(brick::Path path);
  brick::Block some_block() { return rng_.below(blocks_); }
  std::uint64_t some_allocated();
  /// Syncs that were asked for before cover another block of that number.
  void begin_truth(brick::Block block) {
    truth_[block] = {};
    for (auto& [ticket, blocks] : syncs_) blocks.erase(block);
  }

  Rng rng_;
  bool trace_;
  Mood mood_;
  brick::BrickOptions options_;
  std::uint64_t blocks_ = 6;
  std::unique_ptr<brick::Brick> brick_;
  std::vector<Work> events_;
  std::map<brick::Ticket, Then> tickets_;
  std::uint64_t next_ = 1;  ///< tickets, paths, sessions, values
  std::uint64_t now_ = 0;
  std::uint64_t operations_ = 0;

  std::vector<Cells> memory_;
  std::vector<char> dirty_;
  std::vector<Cells> cached_;   ///< of the tier, by place
  std::vector<Cells> durable_;  ///< likewise
  std::vector<brick::Record> log_;
  std::vector<brick::Record> being_recorded_;
  std::map<brick::Block, brick::Slot> open_;
  std::map<brick::Block, unsigned> pins_;
  std::set<brick::Block> wanted_closed_;
  std::map<std::uint64_t, SimKey> keys_;  ///< by map
  std::vector<SimWrite> writes_;
  std::vector<SimClient> clients_;
  std::set<brick::Path> revoked_;
  std::map<brick::Path, brick::Session> sessions_;  ///< of all paths there ever were
  std::map<brick::Block, BlockTruth> truth_;        ///< of blocks whose ALLOC was answered
  std::set<brick::Block> in_doubt_;                 ///< an ALLOC or FREE is under way
  std::set<brick::Block> locked_;
  std::map<brick::Ticket, std::map<brick::Block, BlockTruth>> syncs_;
  std::map<std::pair<brick::Session, std::uint32_t>, std::vector<brick::MapView>> answered_maps_;
};

}  // namespace sim
