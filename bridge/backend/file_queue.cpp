#include "bridge/backend/file_queue.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "bridge/backend/bounce_pool.hpp"
#include "bridge/backend/file_engine.hpp"

namespace rnbd {

namespace {

class FileQueue;

/// A request at work: at most one system call at a time.
struct FileIo : FileOperation {
  FileQueue* queue = nullptr;
  BackendRequest* request = nullptr;
  std::uint64_t progress = 0;   ///< bytes done; read, write and zeroes written
  std::byte* bounce = nullptr;  ///< aligned memory, while a piece needs it
};
static_assert(sizeof(FileIo) <= sizeof(BackendRequest::scratch));
static_assert(std::is_trivially_destructible_v<FileIo>);

/// Written where the file system cannot zero by itself.
constexpr std::size_t kZeroesSize = 256 * 1024;
alignas(4096) std::byte zeroes[kZeroesSize];

class FileQueue final : public BackendQueue {
 public:
  FileQueue(FileState& state, rtrs::Reactor& reactor)
      : state_{state}, bounce_pool_{state.direct_alignment} {
    // An open file description of its own remembers by itself which write errors it has seen: a
    // failed FUA write or another queue's flush does not use up the error this queue has to report.
    const std::string self = "/proc/self/fd/" + std::to_string(state.fd.get());
    flush_fd_ = UniqueFd{open(self.c_str(), O_RDONLY | O_CLOEXEC)};
    if (state.use_uring) engine_ = make_uring_engine(reactor);
    if (engine_ == nullptr) engine_ = make_thread_engine(reactor);
    sync_.kind = FileOperation::Kind::sync;
    sync_.fd = flush_fd_ ? flush_fd_.get() : state.fd.get();
    sync_.memory = reinterpret_cast<std::byte*>(this);
    sync_.done = [](FileOperation& operation, std::int64_t result) {
      reinterpret_cast<FileQueue*>(operation.memory)->on_synced(result);
    };
  }

  void submit(BackendRequest& request) override;

 private:
  // The part of the request inside the file; the padding behind the end is not there.
  std::uint64_t inside(const BackendRequest& request) const {
    const std::uint64_t size = state_.info.size;
    return request.offset >= size ? 0 : std::min(request.length, size - request.offset);
  }

  // Reads and writes.
  bool try_at_once(FileIo& io);
  void transfer(FileIo& io);
  void start_piece(FileIo& io);
  bool prepare_direct(FileIo& io, std::uint64_t offset);
  void on_transferred(FileIo& io, std::int64_t result);

  // Holes and zeroes.
  void discard(FileIo& io);
  void zero(FileIo& io);
  void allocate(FileIo& io, int mode, void (*done)(FileOperation&, std::int64_t));
  void on_zeroed(FileIo& io, std::int64_t result);
  void write_zeroes(FileIo& io);

  // Flush: one at a time; who comes later waits for the next one, which covers all that wait.
  void sync(FileIo& io);
  void start_sync();
  void on_synced(std::int64_t result);

  void extents(FileIo& io);
  void cache(FileIo& io);
  void call(FileIo& io, std::int64_t (*function)(FileOperation&));
  void finish_durably(FileIo& io);
  void finish(FileIo& io, int error);

  FileState& state_;
  UniqueFd flush_fd_;
  BouncePool bounce_pool_;
  FileOperationList bounce_waiting_;
  FileOperation sync_;
  FileOperationList sync_running_;
  FileOperationList sync_waiting_;
  std::unique_ptr<FileEngine> engine_;  // the last member: its operations use the others
};

FileIo& io_of(FileOperation& operation) { return static_cast<FileIo&>(operation); }

void FileQueue::submit(BackendRequest& request) {
  auto& io = *new (request.scratch) FileIo;
  io.queue = this;
  io.request = &request;
  const bool changes = request.operation == BackendOperation::write ||
                       request.operation == BackendOperation::discard ||
                       request.operation == BackendOperation::write_zeroes;
  if (changes && state_.info.read_only) return finish(io, EROFS);
  switch (request.operation) {
    case BackendOperation::read:
    case BackendOperation::write:
      if (!try_at_once(io)) transfer(io);
      break;
    case BackendOperation::flush:
      state_.info.read_only ? finish(io, 0) : sync(io);
      break;
    case BackendOperation::discard:
      discard(io);
      break;
    case BackendOperation::write_zeroes:
      zero(io);
      break;
    case BackendOperation::extents:
      extents(io);
      break;
    case BackendOperation::cache:
      cache(io);
      break;
  }
}

// ---- Reads and writes ---------------------------------------------------------------------------

/// What the page cache can do without waiting is done here and now: cheaper than any hand-over.
/// True when the request is finished.
bool FileQueue::try_at_once(FileIo& io) {
  BackendRequest& request = *io.request;
  const bool writing = request.operation == BackendOperation::write;
  std::atomic<bool>& nowait = writing ? state_.nowait_writes : state_.nowait_reads;
  if (state_.direct || (writing && request.fua)) return false;
  int flags = RWF_NOWAIT;
  if (!nowait.load(std::memory_order_relaxed)) {
    if (!state_.memory_backed) return false;
    flags = 0;
  }
  const iovec vector{request.data, inside(request)};
  if (vector.iov_len == 0) return false;
  const auto offset = static_cast<off_t>(request.offset);
  const ssize_t result = writing ? pwritev2(state_.fd.get(), &vector, 1, offset, flags)
                                 : preadv2(state_.fd.get(), &vector, 1, offset, flags);
  if (result < 0) {
    if (errno == EOPNOTSUPP) nowait.store(false, std::memory_order_relaxed);
    return errno == EOPNOTSUPP && state_.memory_backed ? try_at_once(io) : false;
  }
  io.progress = static_cast<std::uint64_t>(result);
  if (io.progress < vector.iov_len) return false;
  transfer(io);
  return true;
}

/// Goes on until everything is transferred.
void FileQueue::transfer(FileIo& io) {
  BackendRequest& request = *io.request;
  const std::uint64_t end = inside(request);
  if (io.progress < end) return start_piece(io);
  if (request.operation == BackendOperation::read) {
    std::memset(request.data + end, 0, request.length - end);
  }
  finish(io, 0);
}

void FileQueue::start_piece(FileIo& io) {
  const BackendRequest& request = *io.request;
  io.offset = request.offset + io.progress;
  io.length = inside(request) - io.progress;
  switch (request.operation) {
    case BackendOperation::read:
      io.kind = FileOperation::Kind::read;
      io.memory = request.data + io.progress;
      break;
    case BackendOperation::write:
      io.kind = FileOperation::Kind::write;
      io.memory = request.data + io.progress;
      break;
    default:
      io.kind = FileOperation::Kind::write;
      io.memory = zeroes;
      io.length = std::min<std::uint64_t>(io.length, kZeroesSize);
      break;
  }
  io.fd = state_.fd.get();
  io.flags = io.kind == FileOperation::Kind::write && request.fua ? RWF_DSYNC : 0;
  if (state_.direct && !prepare_direct(io, io.offset)) return;
  io.done = [](FileOperation& operation, std::int64_t result) {
    FileIo& self = io_of(operation);
    self.queue->on_transferred(self, result);
  };
  engine_->start(io);
}

/// Uses O_DIRECT for the piece where offset and length allow it, by way of aligned memory if need
/// be. False when it has to wait for such memory.
bool FileQueue::prepare_direct(FileIo& io, std::uint64_t offset) {
  const std::uint32_t alignment = state_.direct_alignment;
  if (offset % alignment != 0 || offset >= state_.direct_end) return true;
  const std::uint64_t length =
      std::min(io.length, state_.direct_end - offset) / alignment * alignment;
  if (length == 0) return true;
  if (reinterpret_cast<std::uintptr_t>(io.memory) % alignment != 0) {
    io.bounce = bounce_pool_.take();
    if (io.bounce == nullptr) {
      bounce_waiting_.push(io);
      return false;
    }
    io.length = std::min<std::uint64_t>(length, BouncePool::kBufferSize);
    if (io.kind == FileOperation::Kind::write) std::memcpy(io.bounce, io.memory, io.length);
    io.memory = io.bounce;
  } else {
    io.length = length;
  }
  io.fd = state_.direct.get();
  return true;
}

void FileQueue::on_transferred(FileIo& io, std::int64_t result) {
  BackendRequest& request = *io.request;
  const bool reading = request.operation == BackendOperation::read;
  if (io.bounce != nullptr) {
    if (reading && result > 0) {
      std::memcpy(request.data + io.progress, io.bounce, static_cast<std::size_t>(result));
    }
    bounce_pool_.give_back(io.bounce);
    io.bounce = nullptr;
    if (!bounce_waiting_.empty()) start_piece(io_of(bounce_waiting_.pop()));
  }
  if (result < 0) {
    // Without an open file description of its own for flushes, this may have used up their error.
    if (!flush_fd_ && !reading && request.fua) state_.flush_failed = true;
    return finish(io, static_cast<int>(-result));
  }
  // The file is shorter than it was when it was opened: somebody truncated it.
  if (result == 0) return finish(io, EIO);
  io.progress += static_cast<std::uint64_t>(result);
  transfer(io);
}

// ---- Holes and zeroes ---------------------------------------------------------------------------

void FileQueue::discard(FileIo& io) {
  const BackendRequest& request = *io.request;
  io.offset = request.offset;
  io.length = inside(request);
  if (state_.block_device) {
    // Devices discard whole blocks only; the rest may stay, a discard is a hint.
    const std::uint64_t unit = state_.block_size;
    const std::uint64_t end = (request.offset + io.length) / unit * unit;
    io.offset = (request.offset + unit - 1) / unit * unit;
    io.length = end > io.offset ? end - io.offset : 0;
  }
  if (!state_.info.can_discard) return finish(io, EOPNOTSUPP);
  if (io.length == 0) return finish_durably(io);
  const auto done = [](FileOperation& operation, std::int64_t result) {
    FileIo& self = io_of(operation);
    if (result < 0) return self.queue->finish(self, static_cast<int>(-result));
    self.queue->finish_durably(self);
  };
  if (!state_.block_device) return allocate(io, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, done);
  io.fd = state_.fd.get();
  io.done = done;
  call(io, [](FileOperation& operation) -> std::int64_t {
    std::uint64_t range[2] = {operation.offset, operation.length};
    return ioctl(operation.fd, BLKDISCARD, range) == 0 ? 0 : -errno;
  });
}

void FileQueue::allocate(FileIo& io, int mode, void (*done)(FileOperation&, std::int64_t)) {
  io.kind = FileOperation::Kind::allocate;
  io.fd = state_.fd.get();
  io.flags = mode;
  io.done = done;
  engine_->start(io);
}

/// Tries what is cheap, in this order: a hole (if the caller does not mind), zeroed allocated
/// blocks, zeroes written one by one.
void FileQueue::zero(FileIo& io) {
  const BackendRequest& request = *io.request;
  io.offset = request.offset;
  io.length = inside(request);
  if (io.length == 0) return finish_durably(io);
  // Block devices zero whole blocks only. And they fall back to writing by themselves in
  // ZERO_RANGE, never in PUNCH_HOLE.
  const bool aligned = !state_.block_device || (io.offset | io.length) % state_.block_size == 0;
  const auto done = [](FileOperation& operation, std::int64_t result) {
    FileIo& self = io_of(operation);
    self.queue->on_zeroed(self, result);
  };
  if (aligned && !request.no_unmap && state_.punch_hole) {
    return allocate(io, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, done);
  }
  const bool quick = !(request.fast && state_.block_device);
  if (aligned && quick && state_.zero_range) {
    return allocate(io, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, done);
  }
  write_zeroes(io);
}

void FileQueue::on_zeroed(FileIo& io, std::int64_t result) {
  if (result >= 0) return finish_durably(io);
  if (result != -EOPNOTSUPP) return finish(io, static_cast<int>(-result));
  const bool was_punch = (io.flags & FALLOC_FL_PUNCH_HOLE) != 0;
  (was_punch ? state_.punch_hole : state_.zero_range) = false;
  zero(io);
}

void FileQueue::write_zeroes(FileIo& io) {
  if (io.request->fast) return finish(io, EOPNOTSUPP);
  transfer(io);
}

/// Ends an operation that is durable only after a flush.
void FileQueue::finish_durably(FileIo& io) { io.request->fua ? sync(io) : finish(io, 0); }

// ---- Flush --------------------------------------------------------------------------------------

void FileQueue::sync(FileIo& io) {
  if (state_.flush_failed) return finish(io, EIO);
  sync_waiting_.push(io);
  if (sync_running_.empty()) start_sync();
}

void FileQueue::start_sync() {
  sync_running_ = sync_waiting_.take();
  engine_->start(sync_);
}

void FileQueue::on_synced(std::int64_t result) {
  if (result < 0 && !state_.flush_failed.exchange(true) && state_.log) {
    state_.log(rtrs::LogLevel::error,
               state_.path + ": flush failed (" + std::strerror(static_cast<int>(-result)) +
                   "); written data may be lost, and every later flush fails until the export is "
                   "opened again");
  }
  const int error = result < 0 ? static_cast<int>(-result) : state_.flush_failed ? EIO : 0;
  FileOperationList finished = sync_running_.take();
  if (!sync_waiting_.empty()) start_sync();
  while (!finished.empty()) finish(io_of(finished.pop()), error);
}

// ---- The rest -----------------------------------------------------------------------------------

void FileQueue::call(FileIo& io, std::int64_t (*function)(FileOperation&)) {
  io.kind = FileOperation::Kind::call;
  io.call = function;
  engine_->start(io);
}

/// Appends a run, joined to the one before if that is of the same kind.
void append_extent(FileIo& io, std::uint64_t length, bool hole) {
  std::vector<BackendExtent>& extents = *io.request->extents;
  if (io.progress > 0 && extents.back().hole == hole) {
    extents.back().length += length;
    return;
  }
  extents.push_back({length, hole, hole});
  ++io.progress;
}

/// Asks the file system; runs on a thread of its own, because the map of a fragmented file is read
/// from disk.
std::int64_t find_extents(FileOperation& operation) {
  FileIo& io = io_of(operation);
  const std::size_t max = std::max<std::size_t>(io.request->max_extents, 1);
  const std::uint64_t end = operation.offset + operation.length;
  std::uint64_t at = operation.offset;
  while (at < end) {
    const off_t data = lseek(operation.fd, static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno != ENXIO) return -errno;
    const std::uint64_t data_at = data < 0 ? end : std::min<std::uint64_t>(data, end);
    if (data_at > at) {
      if (io.progress == max) break;
      append_extent(io, data_at - at, /*hole=*/true);
      at = data_at;
      continue;
    }
    const off_t hole = lseek(operation.fd, static_cast<off_t>(at), SEEK_HOLE);
    if (hole < 0 && errno != ENXIO) return -errno;
    // The file may be written to meanwhile: never stand still.
    const std::uint64_t hole_at = hole < 0 ? end : std::min<std::uint64_t>(hole, end);
    if (hole_at <= at) continue;
    if (io.progress == max) break;
    append_extent(io, hole_at - at, /*hole=*/false);
    at = hole_at;
  }
  // The padding behind the end of the file.
  const std::uint64_t padding_end = operation.offset + io.request->length;
  if (at == end && padding_end > end) {
    if (io.progress < max) {
      append_extent(io, padding_end - end, /*hole=*/true);
    } else if (io.request->extents->back().hole) {
      io.request->extents->back().length += padding_end - end;
    }
  }
  return 0;
}

void FileQueue::extents(FileIo& io) {
  const BackendRequest& request = *io.request;
  if (!state_.info.can_extents) {
    request.extents->push_back({request.length, /*hole=*/false, /*zero=*/false});
    return finish(io, 0);
  }
  io.fd = state_.fd.get();
  io.offset = request.offset;
  io.length = inside(request);
  io.done = [](FileOperation& operation, std::int64_t result) {
    FileIo& self = io_of(operation);
    self.queue->finish(self, static_cast<int>(-result));
  };
  call(io, find_extents);
}

/// Read-ahead is a hint: how it ends matters to nobody.
void FileQueue::cache(FileIo& io) {
  io.offset = io.request->offset;
  io.length = inside(*io.request);
  if (state_.direct || state_.memory_backed || io.length == 0) return finish(io, 0);
  io.kind = FileOperation::Kind::advise;
  io.fd = state_.fd.get();
  io.flags = POSIX_FADV_WILLNEED;
  io.done = [](FileOperation& operation, std::int64_t) {
    FileIo& self = io_of(operation);
    self.queue->finish(self, 0);
  };
  engine_->start(io);
}

void FileQueue::finish(FileIo& io, int error) { io.request->done(*io.request, error); }

}  // namespace

std::unique_ptr<BackendQueue> open_file_queue(FileState& state, rtrs::Reactor& reactor) {
  return std::make_unique<FileQueue>(state, reactor);
}

}  // namespace rnbd
