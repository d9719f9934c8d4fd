// SPDX-License-Identifier: BSD-3-Clause
// One-sided access of a disk's users to the blocks of a brick.
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

/// Maps blocks with many requests, gives back recalled ones, and recovers from the loss of the
/// memory path. It is optional: after before_two_sided(), a two-sided request is always correct.
///
/// Threads: any. A thread of its own talks to the server.
class PassiveBrick {
 public:
  /// Not an errno: send the request two-sided.
  static constexpr int kTwoSided = -1;

  /// `device` is open over `session`. Errors: as RemoteBrick::open().
  static tl::expected<std::shared_ptr<PassiveBrick>, Failure> open(const RemoteDevice& device,
                                                                   Session& session, rtrs::Log log,
                                                                   const Interrupt& interrupt);
  ~PassiveBrick();
  PassiveBrick(const PassiveBrick&) = delete;
  PassiveBrick& operator=(const PassiveBrick&) = delete;

  bool is_of(const RemoteDevice& device) const { return device.shares(brick_->device()); }
  /// True if a SYNC makes writes durable. Otherwise the brick has no durable storage.
  bool has_sync() const { return durability_ == wire::Durability::sync; }

  /// The range lies inside one block. Errors: kTwoSided, EINTR.
  int read(std::uint64_t offset, rtrs::MutableBytes into, const Interrupt& interrupt);
  /// The range lies inside one block, and `pin` is a map of it; see enter(). `seen`: wait until the
  /// server's programs see the write. Errors: kTwoSided, EINTR.
  int write(const MapCache::Pin& pin, std::uint64_t offset, rtrs::ConstBytes data, bool seen,
            const Interrupt& interrupt);
  /// Null: send the write two-sided.
  MapCache::Pin enter(std::uint64_t offset, bool write);
  void leave(const MapCache::Pin& pin);

  /// True if a request for this range could be one-sided, or needs before_two_sided().
  bool concerns(std::uint64_t offset, std::uint64_t length);
  /// Waits until a two-sided request for this range sees all answered one-sided writes, and no
  /// write of unknown outcome can land any more. Errors: EINTR, EIO.
  int before_two_sided(std::uint64_t offset, std::uint64_t length, const Interrupt& interrupt);
  /// The same for the whole device.
  int settle(const Interrupt& interrupt);
  /// A user of the device may write to it.
  void allow_writes();

  /// Notes a two-sided change.
  void note_change();
  /// Begins a flush. Flushes run one at a time, because a later one must not end before this one.
  /// Errors: EINTR.
  int begin_flush(FlushDebt::Debt& debt, const Interrupt& interrupt);
  void end_flush(const FlushDebt::Debt& debt, int error);
  /// Errors: those of RemoteBrick::sync().
  int sync(std::span<const wire::SyncRange> ranges, const Interrupt& interrupt);

  /// The number of one-sided reads and writes so far.
  std::uint64_t one_sided() const { return one_sided_.load(std::memory_order_relaxed); }

 private:
  PassiveBrick(std::unique_ptr<RemoteBrick> brick, const wire::BrickInfoResponse& info,
               rtrs::Log log);
  int settle_range(MapCache::Block first, MapCache::Block last, const Interrupt& interrupt);
  void owe(std::uint64_t offset, std::size_t length);

  enum class Maps : std::uint8_t {
    usable,
    in_doubt,  ///< the server may know others
    revoked,   ///< with the present memory path; another one is made
  };

  // These run on its thread, with the lock, and release it while they wait for the server.
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
  Maps maps_ = Maps::usable;
  std::uint64_t failures_ = 0;  ///< of REVOKE PATH
  std::uint64_t connects_ = 0;
  std::chrono::steady_clock::time_point no_maps_before_{};
  std::thread thread_;
};

}  // namespace rnbd
