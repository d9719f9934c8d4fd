// SPDX-License-Identifier: BSD-3-Clause
// The blocks of a brick that the users of a disk read and write one-sided.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <thread>

#include "bridge/client/brick/flush_debt.hpp"
#include "bridge/client/brick/map_cache.hpp"
#include "bridge/client/brick/remote_brick.hpp"

namespace rnbd {

/// Maps the blocks that requests come to, gives back the ones that are recalled, and gets over the
/// loss of the memory path. It never has to be used: two-sided requests are always right behind
/// before_two_sided().
///
/// Threads: any; one of its own talks to the server.
class PassiveBrick {
 public:
  /// Not an errno: the request has to go two-sided.
  static constexpr int kTwoSided = -1;

  /// `device` is open over `session`. Errors: as RemoteBrick::open().
  static tl::expected<std::shared_ptr<PassiveBrick>, Failure> open(const RemoteDevice& device,
                                                                   Session& session, rtrs::Log log,
                                                                   const Interrupt& interrupt);
  ~PassiveBrick();
  PassiveBrick(const PassiveBrick&) = delete;
  PassiveBrick& operator=(const PassiveBrick&) = delete;

  bool is_of(const RemoteDevice& device) const { return device.shares(brick_->device()); }
  /// A SYNC makes writes durable; else nothing does, and nothing has to.
  bool has_sync() const { return durability_ == wire::Durability::sync; }

  /// Inside one block. Errors: kTwoSided, EINTR.
  int read(std::uint64_t offset, rtrs::MutableBytes into, const Interrupt& interrupt);
  /// Inside one block, which `pin` is a map of; see enter(). `seen`: the server's programs see it
  /// when this returns. Errors: kTwoSided, EINTR.
  int write(const MapCache::Pin& pin, std::uint64_t offset, rtrs::ConstBytes data, bool seen,
            const Interrupt& interrupt);
  /// Null: the write has to go two-sided.
  MapCache::Pin enter(std::uint64_t offset, bool write);
  void leave(const MapCache::Pin& pin);

  /// A request for this range would be one-sided, or has to wait for before_two_sided().
  bool concerns(std::uint64_t offset, std::uint64_t length);
  /// Waits until a two-sided request for this range sees all one-sided writes that were answered,
  /// and until none of unknown fate can land any more. Errors: EINTR, EIO.
  int before_two_sided(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt);
  /// The same for all of the device.
  int settle(const Interrupt& interrupt);
  /// Somebody may write to the device.
  void allow_writes();

  /// A change was carried out two-sided.
  void note_change();
  /// One flush at a time: the next one must not end before this has. Errors: EINTR.
  int begin_flush(FlushDebt::Debt& debt, const Interrupt& interrupt);
  void end_flush(const FlushDebt::Debt& debt, int error);
  /// Errors: those of RemoteBrick::sync().
  int sync(std::span<const wire::SyncRange> ranges, const Interrupt& interrupt);

  /// Reads and writes so far that were one-sided.
  std::uint64_t one_sided() const { return one_sided_.load(std::memory_order_relaxed); }

 private:
  PassiveBrick(std::unique_ptr<RemoteBrick> brick, const wire::BrickInfoResponse& info,
               rtrs::Log log);
  int settle_range(MapCache::Block first, MapCache::Block last, const Interrupt& interrupt);
  void owe(std::uint64_t offset, std::size_t length);

  // On its thread, with the lock, which they give away while they wait for the server.
  using Lock = std::unique_lock<std::mutex>;
  void run();
  bool work(Lock& lock);
  void recover(Lock& lock);
  void give_back_recalled(Lock& lock);
  void unmap(Lock& lock, const MapCache::Pin& pin);
  void map(Lock& lock, MapCache::Block block);
  rtrs::PathAddress next_address();
  Interrupt until_stopped();

  const rtrs::Log log_;
  const std::unique_ptr<RemoteBrick> brick_;
  const wire::Durability durability_;
  std::atomic<std::uint64_t> one_sided_{0};
  std::atomic<bool> stopping_{false};

  mutable std::mutex mutex_;  ///< guards the following members:
  std::condition_variable changed_;
  std::condition_variable wake_;  ///< the thread
  MapCache cache_;
  FlushDebt debt_;
  bool flushing_ = false;
  bool recalled_ = false;
  bool revoked_ = false;        ///< the present memory path
  bool trouble_ = false;        ///< its maps are not what they should be
  std::uint64_t failures_ = 0;  ///< of REVOKE PATH
  std::uint64_t connects_ = 0;
  std::chrono::steady_clock::time_point no_maps_before_{};
  std::thread thread_;
};

}  // namespace rnbd
