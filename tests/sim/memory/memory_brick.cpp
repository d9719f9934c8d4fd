// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/memory/memory_brick.hpp"

#include <cerrno>
#include <utility>

namespace sim {
namespace {

/// No user here reads or writes two-sided.
class NoQueue final : public rnbd::BackendQueue {
 public:
  void submit(rnbd::BackendRequest& request) override { request.done(request, EIO); }
};

class BrickStorage final : public rnbd::Backend {
 public:
  explicit BrickStorage(MemoryBrick& brick) : brick_{brick} {
    info_.size = brick.options().places * brick::kBlockSize;
    info_.uuid = brick.uuid();
  }
  const rnbd::BackendInfo& info() const override { return info_; }
  rnbd::BackendExtension* extension() override { return &brick_; }
  std::unique_ptr<rnbd::BackendQueue> open_queue(rtrs::Reactor*) override {
    return std::make_unique<NoQueue>();
  }

 private:
  MemoryBrick& brick_;
  rnbd::BackendInfo info_;
};

}  // namespace

std::unique_ptr<rnbd::Backend> backend_of(MemoryBrick& brick) {
  return std::make_unique<BrickStorage>(brick);
}

MemoryBrick::MemoryBrick(const brick::BrickOptions& options, BrickSurroundings surroundings)
    : options_{options},
      surroundings_{std::move(surroundings)},
      memory_{brick::BrickMemory::map(options.slots, options.places)},
      brick_{std::make_unique<brick::Brick>(options, std::vector<brick::Kept>{}, *this)} {}

void MemoryBrick::run(std::function<void(brick::Brick&)> work) {
  work_.push_back(std::move(work));
  surroundings_.later([this] {
    const auto next = std::move(work_.front());
    work_.pop_front();
    next(*brick_);
  });
}

brick::Ticket MemoryBrick::ask(std::function<void(const brick::Reply&)> then) {
  tickets_.emplace(next_, std::move(then));
  return next_++;
}

void MemoryBrick::answer(brick::Ticket ticket, const brick::Reply& reply) {
  const auto node = tickets_.extract(ticket);
  if (!node.empty()) node.mapped()(reply);
}

brick::Path MemoryBrick::add_path(brick::Session session,
                                  std::shared_ptr<brick::BrickExposure> exposure) {
  const brick::Path path = next_++;
  paths_[path] = std::move(exposure);
  brick_->path_up(session, path);
  return path;
}

void MemoryBrick::remove_path(brick::Path path) {
  paths_.erase(path);
  brick_->path_gone(path);
}

void MemoryBrick::add_session(brick::Session session, const std::string&,
                              std::function<void()> on_recall) {
  recalled_[session] = std::move(on_recall);
}

void MemoryBrick::remove_session(brick::Session session) {
  recalled_.erase(session);
  brick_->session_gone(session);
}

void MemoryBrick::record(const std::vector<brick::Record>&) {
  run([](brick::Brick& brick) { brick.recorded(0); });
}

void MemoryBrick::store(const brick::StoreJob& job) {
  surroundings_.later([this, id = job.job] { brick_->stored(id, 0); });
}

void MemoryBrick::load(brick::Slot slot, brick::Place, std::uint64_t job) {
  surroundings_.takes(slot);
  surroundings_.later([this, job] { brick_->loaded(job, 0); });
}

void MemoryBrick::expose(const brick::NewMap& wanted) {
  const std::uint64_t map = wanted.map;
  const auto path = paths_.find(wanted.path);
  if (path == paths_.end())
    return run([map](brick::Brick& brick) { brick.exposed(map, 0, 0, ENOTCONN); });
  keys_[map].exposure = path->second;
  const auto done = [this, map](int error, std::uint32_t key, std::uint64_t address) {
    run([this, map, error, key, address](brick::Brick& brick) {
      keys_[map].key = key;
      keys_[map].address = address;
      if (error != 0) keys_.erase(map);
      brick.exposed(map, key, address, error);
    });
  };
  path->second->expose({memory_->at(wanted.slot), brick::kBlockSize}, wanted.rights, done);
}

void MemoryBrick::retire(std::uint64_t map) {
  const Key key = keys_.at(map);
  key.exposure->retire(key.key, key.address, [this, map] {
    run([this, map](brick::Brick& brick) {
      keys_.erase(map);
      brick.retired(map);
    });
  });
}

void MemoryBrick::recall(brick::Session session) {
  if (const auto found = recalled_.find(session); found != recalled_.end()) found->second();
}

void MemoryBrick::kill(brick::Path path) {
  const auto found = paths_.find(path);
  if (found == paths_.end()) return;
  found->second->end();
  paths_.erase(found);
}

}  // namespace sim
