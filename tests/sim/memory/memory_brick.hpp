// SPDX-License-Identifier: BSD-3-Clause
// A brick whose thread, journal and tier are events of a simulated world. Beside the shipped rules
// it does what rnbd::brick::BrickWorker does with threads and files.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bridge/backend/backend.hpp"
#include "bridge/backend/brick/service.hpp"

namespace sim {

namespace brick = rnbd::brick;

/// The brick's surroundings in the world.
struct BrickSurroundings {
  /// Runs work at some moment.
  std::function<void(std::function<void()> work)> later;
  /// The memory becomes another block's.
  std::function<void(brick::Slot slot)> takes;
};

class MemoryBrick final : public brick::BrickService, public brick::BrickHost {
 public:
  MemoryBrick(const brick::BrickOptions& options, BrickSurroundings surroundings);

  const brick::Brick& rules() const { return *brick_; }
  void tick(std::uint64_t now) { brick_->tick(now); }
  std::size_t unanswered() const { return tickets_.size(); }

  // BrickService
  void run(std::function<void(brick::Brick&)> work) override;
  brick::Ticket ask(std::function<void(const brick::Reply&)> then) override;
  brick::Path add_path(brick::Session session,
                       std::shared_ptr<brick::BrickExposure> exposure) override;
  void remove_path(brick::Path path) override;
  void add_session(brick::Session session, const std::string& name,
                   std::function<void()> on_recall) override;
  void remove_session(brick::Session session) override;
  std::map<brick::Session, std::string> users() const override { return {}; }
  brick::BrickMemory& memory() override { return *memory_; }
  const brick::BrickOptions& options() const override { return options_; }
  bool has_tier() const override { return true; }
  std::uint64_t epoch() const override { return 1; }
  const std::array<std::uint8_t, 16>& uuid() const override { return uuid_; }
  brick::Session new_session() override { return next_++; }

  // BrickHost
  void answer(brick::Ticket ticket, const brick::Reply& reply) override;
  void record(const std::vector<brick::Record>& records) override;
  void store(const brick::StoreJob& job) override;
  void load(brick::Slot slot, brick::Place place, std::uint64_t job) override;
  void zero(brick::Slot slot) override { surroundings_.takes(slot); }
  void open(brick::Block, brick::Slot) override {}
  bool close(brick::Block) override { return true; }
  bool dirty(brick::Slot) const override { return false; }
  void expose(const brick::NewMap& wanted) override;
  void retire(std::uint64_t map) override;
  void recall(brick::Session session) override;
  void kill(brick::Path path) override;

 private:
  struct Key {
    std::shared_ptr<brick::BrickExposure> exposure;
    std::uint32_t key = 0;
    std::uint64_t address = 0;
  };

  brick::BrickOptions options_;
  BrickSurroundings surroundings_;
  std::unique_ptr<brick::BrickMemory> memory_;
  std::array<std::uint8_t, 16> uuid_{1};
  std::deque<std::function<void(brick::Brick&)>> work_;
  std::map<brick::Ticket, std::function<void(const brick::Reply&)>> tickets_;
  std::map<brick::Path, std::shared_ptr<brick::BrickExposure>> paths_;
  std::map<brick::Session, std::function<void()>> recalled_;
  std::map<std::uint64_t, Key> keys_;  ///< by map
  std::uint64_t next_ = 1;             ///< sessions, paths, tickets
  std::unique_ptr<brick::Brick> brick_;
};

/// The storage of an export that is this brick.
std::unique_ptr<rnbd::Backend> backend_of(MemoryBrick& brick);

}  // namespace sim
