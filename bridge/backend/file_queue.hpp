// SPDX-License-Identifier: BSD-3-Clause
// A reactor's own access to a file or block device. Reads and writes are in file_queue.cpp, durable
// writes in file_durable.cpp, flushes in file_flush.cpp, holes and zeroes in file_zero.cpp, extents
// and read-ahead in file_map.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

#include "bridge/backend/bounce_pool.hpp"
#include "bridge/backend/file.hpp"
#include "bridge/backend/file_engine.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {

class FileQueue;

/// A request in progress; it has at most one system call at a time.
struct FileIo : FileOperation {
  static constexpr std::int8_t kNotLent = -1;

  FileQueue* queue = nullptr;
  BackendRequest* request = nullptr;
  std::uint64_t progress = 0;   ///< bytes done; read, write and zeroes written
  int failed = 0;               ///< errno of a write with FUA, behind which a flush is made
  std::int8_t lent = kNotLent;  ///< index in FileState::lent_files
  bool flush_behind = false;    ///< a flush makes this write durable
  std::byte* bounce = nullptr;  ///< aligned memory, while a piece needs it
};
static_assert(sizeof(FileIo) <= sizeof(BackendRequest::scratch));
static_assert(std::is_trivially_destructible_v<FileIo>);

class FileQueue final : public BackendQueue {
 public:
  /// `flush_fd`: none for storage that is read-only.
  FileQueue(FileState& state, rtrs::Reactor& reactor, rtrs::OwnedFd flush_fd);
  ~FileQueue() override;
  void submit(BackendRequest& request) override;

 private:
  /// The owner is told that a flush has failed.
  struct Noting : FileOperation {
    FileQueue* queue = nullptr;
    std::int64_t error = 0;  ///< negative
  };

  void perform(FileIo& io);

  // Bytes of the request that lie inside the file; the padding behind the end is excluded.
  std::uint64_t inside(const BackendRequest& request) const {
    const std::uint64_t size = state_.size.load(std::memory_order_relaxed);
    return request.offset >= size ? 0 : std::min(request.length, size - request.offset);
  }

  // Reads and writes.
  bool try_at_once(FileIo& io);
  void transfer(FileIo& io);
  void start_piece(FileIo& io);
  std::byte* memory_of(const FileIo& io) const;
  bool prepare_direct(FileIo& io, std::uint64_t offset);
  void on_transferred(FileIo& io, std::int64_t result);

  // Durable writes through the page cache.
  bool lend(FileIo& io);
  bool take_back(FileIo& io);
  static std::int64_t write_on_lent(FileOperation& operation);
  void write_durably(FileIo& io);

  // Holes and zeroes.
  void discard(FileIo& io);
  void zero(FileIo& io);
  void allocate(FileIo& io, int mode, void (*done)(FileOperation&, std::int64_t));
  void on_zeroed(FileIo& io, std::int64_t result);
  void write_zeroes(FileIo& io);

  // Flushes run one at a time. Later requests wait for the next flush, which covers all of them.
  void sync(FileIo& io);
  void start_sync();
  void on_synced(std::int64_t result);
  void end_sync(std::int64_t result);

  void extents(FileIo& io);
  void cache(FileIo& io);
  void call(FileIo& io, std::int64_t (*function)(FileOperation&));
  void finish_durably(FileIo& io);
  void finish(FileIo& io, int error);

  FileState& state_;
  /// Each open file description reports a write error of the kernel once. With one of its own, this
  /// queue does not miss an error that another queue's flush has reported. It must be open before
  /// the queue changes anything.
  rtrs::OwnedFd flush_fd_;
  Noting noting_;
  BouncePool bounce_pool_;
  FileOperationList bounce_waiting_;
  FileOperation sync_;
  FileOperationList sync_running_;
  FileOperationList sync_waiting_;
  std::unique_ptr<FileEngine> engine_;  // the last member: its operations use the others
};

inline FileIo& io_of(FileOperation& operation) { return static_cast<FileIo&>(operation); }

}  // namespace rnbd
