// SPDX-License-Identifier: BSD-3-Clause
// Flushes of a file. They run one at a time; later requests wait for the next flush, which covers
// all of them. A flush may only succeed if no error was lost on the way to the disk.
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "bridge/backend/file_queue.hpp"

namespace rnbd {

int reopen(int fd, int flags) {
  const std::string self = "/proc/self/fd/" + std::to_string(fd);
  const int other = open(self.c_str(), flags | O_CLOEXEC);
  return other < 0 ? -errno : other;
}

rtrs::OwnedFd take_flush_fd(FileState& state) {
  const std::lock_guard lock{state.spare_mutex};
  if (state.spare_flush_fds.empty()) return rtrs::OwnedFd{reopen(state.fd.get(), O_RDONLY)};
  rtrs::OwnedFd fd = std::move(state.spare_flush_fds.back());
  state.spare_flush_fds.pop_back();
  return fd;
}

void give_back(FileState& state, rtrs::OwnedFd fd) {
  const std::lock_guard lock{state.spare_mutex};
  state.spare_flush_fds.push_back(std::move(fd));
}

// ---- Flushes ------------------------------------------------------------------------------------

/// Ends an operation that is durable only after a flush.
void FileQueue::finish_durably(FileIo& io) { io.request->fua ? sync(io) : finish(io, 0); }

void FileQueue::sync(FileIo& io) {
  if (state_.flush_failed) return finish(io, EIO);
  sync_waiting_.push(io);
  if (sync_running_.empty()) start_sync();
}

void FileQueue::start_sync() {
  sync_running_ = sync_waiting_.take();
  sync_.fd = flush_fd_.get();
  engine_->start(sync_);
}

void FileQueue::on_synced(std::int64_t result) {
  const bool first_failure = result < 0 && !state_.flush_failed.exchange(true);
  if (!first_failure) return end_sync(result);
  if (state_.log) {
    state_.log(rtrs::LogLevel::error,
               state_.path + ": flush failed (" + std::strerror(static_cast<int>(-result)) +
                   "); written data may be lost, and every later flush fails; see to the disk, "
                   "then restart the server");
  }
  if (!state_.on_loss) return end_sync(result);
  noting_.queue = this;
  noting_.error = result;
  noting_.kind = FileOperation::Kind::call;
  noting_.call = [](FileOperation& operation) -> std::int64_t {
    static_cast<Noting&>(operation).queue->state_.on_loss();
    return 0;
  };
  noting_.done = [](FileOperation& operation, std::int64_t) {
    auto& noting = static_cast<Noting&>(operation);
    noting.queue->end_sync(noting.error);
  };
  engine_->start(noting_);
}

void FileQueue::end_sync(std::int64_t result) {
  const int error = result < 0 ? static_cast<int>(-result) : state_.flush_failed ? EIO : 0;
  FileOperationList finished = sync_running_.take();
  if (!sync_waiting_.empty()) start_sync();
  while (!finished.empty()) finish(io_of(finished.pop()), error);
}

}  // namespace rnbd
