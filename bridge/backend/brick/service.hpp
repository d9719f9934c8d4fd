// SPDX-License-Identifier: BSD-3-Clause
// A brick as its users see it: requests for its blocks, and sessions that map them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "bridge/backend/backend.hpp"
#include "bridge/backend/brick/brick.hpp"
#include "bridge/backend/brick/memory.hpp"

namespace rnbd::brick {

/// The keys of one memory path. The transport implements it.
///
/// Threads: called on the brick's. It may call back on any thread, and later.
class BrickExposure {
 public:
  virtual ~BrickExposure() = default;
  /// Allows the client to read or write this memory one-sided (kRead, kWrite).
  virtual void expose(
      std::span<std::byte> memory, std::uint32_t rights,
      std::function<void(int error, std::uint32_t key, std::uint64_t address)> done) = 0;
  /// Calls `done` when no access by the key is possible any more.
  virtual void retire(std::uint32_t key, std::uint64_t address, std::function<void()> done) = 0;
  /// Ends the path.
  virtual void end() = 0;
};

/// Threads: any, unless told otherwise.
class BrickService : public BackendExtension {
 public:
  /// Runs `work` on the brick's thread.
  virtual void run(std::function<void(Brick&)> work) = 0;
  /// `then` is called on the brick's thread, from inside the brick. It must not call the brick.
  /// Threads: the brick's.
  virtual Ticket ask(std::function<void(const Reply&)> then) = 0;
  /// Ends a ticket that was not given to the brick yet.
  /// Threads: the brick's.
  virtual void answer(Ticket ticket, const Reply& reply) = 0;

  // Threads: the brick's.
  virtual Path add_path(Session session, std::shared_ptr<BrickExposure> exposure) = 0;
  virtual void remove_path(Path path) = 0;
  virtual void add_session(Session session, const std::string& name,
                           std::function<void()> on_recall) = 0;
  virtual void remove_session(Session session) = 0;
  /// Names of sessions, for people.
  virtual std::map<Session, std::string> users() const = 0;

  virtual BrickMemory& memory() = 0;
  virtual const BrickOptions& options() const = 0;
  virtual bool has_tier() const = 0;
  /// A new number means that data without a sync may be lost.
  virtual std::uint64_t epoch() const = 0;
  virtual const std::array<std::uint8_t, 16>& uuid() const = 0;
  virtual Session new_session() = 0;
  /// Called when the last request has left a block that is being closed.
  void left(Block block) {
    run([block](Brick& brick) { brick.released(block); });
  }
};

/// Null: the storage is no brick.
inline BrickService* service_of(Backend& storage) {
  return dynamic_cast<BrickService*>(storage.extension());
}

}  // namespace rnbd::brick
