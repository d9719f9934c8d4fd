// SPDX-License-Identifier: BSD-3-Clause
// A brick at a server. The client allocates blocks, maps them, and reads and writes them one-sided.
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

/// Features that a session with bricks must offer, beside those for RNBD.
inline constexpr std::uint32_t kBrickFeatures =
    rtrs::wire::kFeatureMemoryPaths | wire::kFeaturePassive;

/// A mapped block: the memory behind its key, until unmap() or the end of its memory path.
struct MappedBlock {
  std::uint64_t id = 0;
  std::uint64_t generation = 0;
  rtrs::RemoteMemory where;
  std::uint32_t rights = 0;  ///< wire::kMapRead, wire::kMapWrite
  /// The path of read() and write(). When it is dead, so are the blocks that were mapped over it.
  std::shared_ptr<rtrs::MemoryPath> path;
};

/// An open brick. Its messages use the session that opened it, and survive the loss of a path. Its
/// reads and writes use one memory path, and fail with it. Ids are multiples of wire::kBrickBlock.
///
/// Calls block until the server has answered, unless noted. Their errors are errnos: the server's
/// own, EIO (the session is over), EINTR (interrupted), EPROTO (nonsense from the server).
/// Threads: any.
/// Source:  docs/protocol.md, bricks.
class RemoteBrick {
 public:
  ~RemoteBrick();
  RemoteBrick(const RemoteBrick&) = delete;
  RemoteBrick& operator=(const RemoteBrick&) = delete;

  /// Opens a brick over a session with kBrickFeatures. `address` must lead to the same server.
  ///
  /// Errors: ENOTSUP (the server has no memory paths, or the device is no brick), those of
  ///         Session::open() and rtrs::Client::open_memory_path().
  static tl::expected<std::unique_ptr<RemoteBrick>, Failure> open(Session& session,
                                                                  const std::string& name,
                                                                  const OpenOptions& options,
                                                                  const rtrs::PathAddress& address,
                                                                  const Interrupt& interrupt);

  /// The present state of the brick.
  tl::expected<wire::BrickInfoResponse, int> info(const Interrupt& interrupt);
  /// The allocation is durable when the call returns. Without `all` it may allocate only some
  /// blocks, from the first one on. Errors: EEXIST, ENOSPC, EINVAL.
  int alloc(std::uint64_t id, std::uint32_t count, bool all, const Interrupt& interrupt);
  /// Errors: EBUSY (a client has mapped it), ENOENT, EINVAL.
  int free(std::uint64_t id, std::uint32_t count, bool all, const Interrupt& interrupt);
  /// At most wire::kMaxBrickMaps blocks. `flags`: wire::MapFlag.
  ///
  /// Errors: EBUSY, ENOENT, EAGAIN (memory is full of mapped blocks, ask again), EMFILE, EIO also
  ///         when the memory path is dead (see recover()).
  tl::expected<std::vector<MappedBlock>, int> map(std::uint64_t id, std::uint32_t count,
                                                  std::uint32_t flags, const Interrupt& interrupt);
  /// When it returns, no write can land in the block any more. No read() or write() of it may be
  /// under way. `drop`: the content is not needed.
  ///
  /// Errors: ENOENT (this map does not exist any more).
  int unmap(const MappedBlock& block, bool drop, const Interrupt& interrupt);
  tl::expected<std::vector<wire::BrickExtent>, int> list(wire::BrickListing what,
                                                         const Interrupt& interrupt);
  /// Makes earlier writes to these ranges durable. Without ranges it covers all blocks that this
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
  /// Makes all writes over the path of `block` visible to the server's programs: to requests, and
  /// to SYNC. `block` must be mapped for reading.
  static int settle(const MappedBlock& block, const Interrupt& interrupt);
  /// write(), and settle() for these bytes, in one wait.
  ///
  /// Errors: as write(); EACCES, too, if the block is not mapped for reading.
  static int write_settled(const MappedBlock& block, std::uint64_t offset, rtrs::ConstBytes data,
                           const Interrupt& interrupt);

  /// Replaces a dead memory path. First it waits until the server has ended the path's keys, so
  /// that no write of unknown outcome can land any more. Does nothing while the path lives.
  ///
  /// Errors: those of rtrs::Client::open_memory_path(), and of the session.
  tl::expected<void, Failure> recover(const Interrupt& interrupt);
  /// The two halves of recover(), one thread at a time. After revoke() no write lands.
  tl::expected<void, Failure> revoke(const Interrupt& interrupt);
  tl::expected<void, Failure> reconnect(const rtrs::PathAddress& address,
                                        const Interrupt& interrupt);
  /// True while the memory path lives.
  bool alive() const { return path()->alive(); }

  /// Calls `listener` when the brick wants blocks back; list(BrickListing::recalled) returns them.
  /// A client that has not unmapped them at the end of the lease loses its memory path. The
  /// listener must neither block nor call the brick. Null removes it.
  ///
  /// Threads: any; the listener runs on a thread of the session.
  void on_recall(std::function<void()> listener);

  RemoteDevice& device() { return *device_; }
  /// The memory path of new maps. Its register_memory() avoids copies over RDMA.
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
