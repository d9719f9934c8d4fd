// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/file_queue.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

namespace rnbd {

namespace {

/// Written where the file system cannot zero by itself.
constexpr std::size_t kZeroesSize = 256 * 1024;
alignas(4096) std::byte zeroes[kZeroesSize];

}  // namespace

FileQueue::FileQueue(FileState& state, rtrs::Reactor& reactor, rtrs::OwnedFd flush_fd)
    : state_{state}, flush_fd_{std::move(flush_fd)}, bounce_pool_{state.direct_alignment} {
  if (state.use_uring) engine_ = make_uring_engine(reactor);
  if (engine_ == nullptr) {
    engine_ = make_thread_engine(reactor);
    if (state.use_uring.exchange(false) && state.log) {
      state.log(rtrs::LogLevel::info,
                state.path + ": io_uring is not to be had; threads do its work");
    }
  }
  sync_.kind = FileOperation::Kind::sync;
  sync_.memory = reinterpret_cast<std::byte*>(this);
  sync_.done = [](FileOperation& operation, std::int64_t result) {
    reinterpret_cast<FileQueue*>(operation.memory)->on_synced(result);
  };
}

FileQueue::~FileQueue() {
  if (flush_fd_) give_back(state_, std::move(flush_fd_));
}

void FileQueue::submit(BackendRequest& request) {
  auto& io = *new (request.scratch) FileIo;
  io.queue = this;
  io.request = &request;
  const bool changes = request.operation == BackendOperation::write ||
                       request.operation == BackendOperation::discard ||
                       request.operation == BackendOperation::write_zeroes;
  const bool flushes = request.operation == BackendOperation::flush;
  if (state_.info.read_only && (changes || flushes)) return finish(io, changes ? EROFS : 0);
  perform(io);
}

void FileQueue::perform(FileIo& io) {
  switch (io.request->operation) {
    case BackendOperation::read:
    case BackendOperation::write:
      if (!try_at_once(io)) transfer(io);
      break;
    case BackendOperation::flush:
      sync(io);
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

/// Serves as much as possible from the page cache without waiting, which is cheaper than any
/// hand-over. True when the request is finished.
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
  if (io.flush_behind) return sync(io);
  // The bytes of this request are durable, but clients expect the same of all earlier writes, as
  // after a flush. So an earlier failure fails this request, too.
  finish(io, request.fua && state_.flush_failed ? EIO : 0);
}

void FileQueue::start_piece(FileIo& io) {
  const BackendRequest& request = *io.request;
  io.offset = request.offset + io.progress;
  io.length = inside(request) - io.progress;
  const bool reading = request.operation == BackendOperation::read;
  io.kind = reading ? FileOperation::Kind::read : FileOperation::Kind::write;
  io.memory = memory_of(io);
  if (io.memory == zeroes) io.length = std::min<std::uint64_t>(io.length, kZeroesSize);
  io.fd = state_.fd.get();
  io.flags = !reading && request.fua && !io.flush_behind ? RWF_DSYNC : 0;
  if (state_.direct && !prepare_direct(io, io.offset)) return;
  io.done = [](FileOperation& operation, std::int64_t result) {
    FileIo& self = io_of(operation);
    self.queue->on_transferred(self, result);
  };
  const bool direct = io.fd != state_.fd.get();
  if ((io.flags & RWF_DSYNC) != 0 && !direct) return write_durably(io);
  engine_->start(io);
}

std::byte* FileQueue::memory_of(const FileIo& io) const {
  const BackendRequest& request = *io.request;
  return request.operation == BackendOperation::write_zeroes ? zeroes : request.data + io.progress;
}

/// Uses O_DIRECT for the piece where offset and length allow it, by way of aligned memory if need
/// be. False when it has to wait for such memory.
bool FileQueue::prepare_direct(FileIo& io, std::uint64_t offset) {
  const std::uint32_t alignment = state_.direct_alignment;
  const std::uint64_t direct_end = state_.direct_end.load(std::memory_order_relaxed);
  if (offset % alignment != 0 || offset >= direct_end) return true;
  const std::uint64_t length = std::min(io.length, direct_end - offset) / alignment * alignment;
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
  if (io.lent != FileIo::kNotLent && !take_back(io)) {
    io.flush_behind = true;
    return start_piece(io);
  }
  if (result < 0 && (io.flags & RWF_DSYNC) != 0) {
    // It may report a failure of earlier writes, which would be forgotten when this server ends.
    io.failed = static_cast<int>(-result);
    return sync(io);
  }
  if (result < 0) return finish(io, static_cast<int>(-result));
  // The file is shorter than it was when it was opened: somebody truncated it.
  if (result == 0) return finish(io, EIO);
  io.progress += static_cast<std::uint64_t>(result);
  transfer(io);
}

void FileQueue::call(FileIo& io, std::int64_t (*function)(FileOperation&)) {
  io.kind = FileOperation::Kind::call;
  io.call = function;
  engine_->start(io);
}

void FileQueue::finish(FileIo& io, int error) {
  BackendRequest& request = *io.request;
  if (io.failed != 0) error = io.failed;
  request.done(request, error == 0 ? 0 : error_told(state_, request, error));
}

}  // namespace rnbd
