// SPDX-License-Identifier: BSD-3-Clause
// A brick somewhere else: blocks that its client allocates, maps, and reads and writes by itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/client/remote_device.hpp"
#include "bridge/protocol/brick_messages.hpp"
#include "rdma/memory_path.hpp"

namespace rnbd {

/// Features to be offered by a session that opens bricks, beside those for RNBD.
inline constexpr std::uint32_t kBrickFeatures =
    rtrs::wire::kFeatureMemoryPaths | wire::kFeaturePassive;

/// A mapped block: the memory behind its key, until unmap() or the end of its memory path.
struct MappedBlock {
  std::uint64_t id = 0;
  std::uint64_t generation = 0;
  rtrs::RemoteMemory where;
  std::uint32_t rights = 0;  ///< wire::kMapRead, wire::kMapWrite
  /// The path of read() and write(); a block mapped over another path is dead with that.
  std::shared_ptr<rtrs::MemoryPath> path;
};

/// An open brick. Messages go over the session that opened it, and survive its paths; reads and
/// writes go over one memory path, and die with it. Ids are multiples of wire::kBrickBlock.
///
/// Unless told otherwise calls block until the server has answered. Their errors are errnos: the
/// server's own, EIO (the session is over), EINTR (interrupted), EPROTO (nonsense from the server).
/// Threads: any.
/// Source:  docs/protocol.md, bricks.
class RemoteBrick {
 public:
  ~RemoteBrick();
  RemoteBrick(const RemoteBrick&) = delete;
  RemoteBrick& operator=(const RemoteBrick&) = delete;

  /// Over a session with kBrickFeatures. `address` leads to the same server as the session.
  ///
  /// Errors: ENOTSUP (the server has no memory paths, or the device is no brick), those of
  ///         Session::open() and rtrs::Client::open_memory_path().
  static tl::expected<std::unique_ptr<RemoteBrick>, Failure> open(Session& session,
                                                                  const std::string& name,
                                                                  const OpenOptions& options,
                                                                  const rtrs::PathAddress& address,
                                                                  const Interrupt& interrupt);

  /// The brick as it is now.
  tl::expected<wire::BrickInfoResponse, int> info(const Interrupt& interrupt);
  /// Durable when it is answered. Errors: EEXIST, ENOSPC, EINVAL; without `all` some of the first
  /// blocks may have been allocated.
  int alloc(std::uint64_t id, std::uint32_t count, bool all, const Interrupt& interrupt);
  /// Errors: EBUSY (mapped by anybody), ENOENT, EINVAL.
  int free(std::uint64_t id, std::uint32_t count, bool all, const Interrupt& interrupt);
  /// At most wire::kMaxBrickMaps blocks. `flags`: wire::MapFlag.
  ///
  /// Errors: EBUSY, ENOENT, EAGAIN (memory is full of mapped blocks, ask again), EMFILE, EIO also
  ///         when the memory path is dead (see recover()).
  tl::expected<std::vector<MappedBlock>, int> map(std::uint64_t id, std::uint32_t count,
                                                  std::uint32_t flags, const Interrupt& interrupt);
  /// Nothing lands in the block any more when it is answered. No read() or write() of it may be
  /// under way. `drop`: the content need not be kept.
  ///
  /// Errors: ENOENT (it is not mapped so any more).
  int unmap(const MappedBlock& block, bool drop, const Interrupt& interrupt);
  tl::expected<std::vector<wire::BrickExtent>, int> list(wire::BrickListing what,
                                                         const Interrupt& interrupt);
  /// Earlier writes to these ranges are durable when it is answered; without ranges, all that this
  /// session has mapped for writing.
  ///
  /// Errors: ENOENT (a range is not allocated), EOPNOTSUPP (the brick is plain memory), E2BIG.
  int sync(std::span<const wire::SyncRange> ranges, const Interrupt& interrupt);

  /// One-sided: no program at the server takes part.
  ///
  /// Errors: EINVAL (outside the block), EACCES (not mapped for that), and those of
  /// rtrs::MemoryPath:
  ///         after EIO and EINTR all maps are dead, see recover().
  static int read(const MappedBlock& block, std::uint64_t offset, rtrs::MutableBytes into,
                  const Interrupt& interrupt);
  static int write(const MappedBlock& block, std::uint64_t offset, rtrs::ConstBytes data,
                   const Interrupt& interrupt);
  /// Behind it the server's programs see what was written to any block of the path of `block`,
  /// which is mapped for reading: requests for it, and SYNC.
  static int settle(const MappedBlock& block, const Interrupt& interrupt);
  /// write(), and settle() for these bytes, in one wait.
  ///
  /// Errors: as write(); EACCES, too, if the block is not mapped for reading.
  static int write_settled(const MappedBlock& block, std::uint64_t offset, rtrs::ConstBytes data,
                           const Interrupt& interrupt);

  /// The memory path is dead: waits until the server says that its keys are, so that no write of
  /// unknown fate can land any more, and connects another one. Does nothing while it lives.
  ///
  /// Errors: those of rtrs::Client::open_memory_path(), and of the session.
  tl::expected<void, Failure> recover(const Interrupt& interrupt);
  /// The two halves of recover(), one thread at a time: from revoke() on nothing lands.
  tl::expected<void, Failure> revoke(const Interrupt& interrupt);
  tl::expected<void, Failure> reconnect(const rtrs::PathAddress& address,
                                        const Interrupt& interrupt);
  /// The memory path lives.
  bool alive() const { return path()->alive(); }

  /// `listener` is called when the brick wants blocks back, which list(BrickListing::recalled)
  /// tells: who does not unmap them before the lease ends loses the memory path. Null: nobody
  /// listens from here on. It must not block, nor call the brick.
  ///
  /// Threads: any; the listener on one of the session.
  void on_recall(std::function<void()> listener);

  RemoteDevice& device() { return *device_; }
  /// By which maps go from now on. register_memory() of it spares copies over RDMA.
  std::shared_ptr<rtrs::MemoryPath> path() const;

 private:
  RemoteBrick(std::unique_ptr<RemoteDevice> device, rtrs::PathAddress address)
      : device_{std::move(device)}, address_{std::move(address)} {}

  rtrs::Client& client() { return device_->session().client(); }
  template <class Message>
  int order(const Message& message, const Interrupt& interrupt);
  template <class Message>
  int ask(const Message& message, rtrs::MutableBytes answer, const Interrupt& interrupt);
  int change(wire::MessageType type, std::uint64_t id, std::uint32_t count, bool all,
             const Interrupt& interrupt);

  const std::unique_ptr<RemoteDevice> device_;
  const rtrs::PathAddress address_;
  mutable std::mutex mutex_;
  std::shared_ptr<rtrs::MemoryPath> path_;  ///< guarded by mutex_
  std::mutex mapping_;                      ///< held while a MAP is under way
  std::uint32_t maps_ = 0;                  ///< so far; guarded by mapping_
  std::mutex recovery_;                     ///< held while the memory path is replaced
};

}  // namespace rnbd
