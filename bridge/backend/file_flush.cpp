// Flushes of a file: one at a time; who comes later waits for the next one, which covers all that
// wait. A flush may only succeed if no error was lost on the way to the disk.
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "bridge/backend/file_queue.hpp"

namespace rnbd {

UniqueFd take_spare(FileState& state) {
  const std::lock_guard lock{state.spare_mutex};
  if (state.spare_flush_fds.empty()) return {};
  UniqueFd fd = std::move(state.spare_flush_fds.back());
  state.spare_flush_fds.pop_back();
  return fd;
}

void give_back(FileState& state, UniqueFd fd) {
  const std::lock_guard lock{state.spare_mutex};
  state.spare_flush_fds.push_back(std::move(fd));
}

// ---- The descriptor
// ------------------------------------------------------------------------------

/// An open file description of its own remembers by itself which write errors it has seen: a failed
/// FUA write or another queue's flush does not use up the error this queue has to report. So it
/// must be there before this queue changes anything.
void FileQueue::await_flush_fd(FileIo& io) {
  const bool under_way = !unopened_.empty();
  unopened_.push(io);
  if (under_way) return;
  opening_.queue = this;
  opening_.kind = FileOperation::Kind::call;
  opening_.fd = state_.fd.get();
  opening_.call = [](FileOperation& operation) -> std::int64_t {
    const std::string self = "/proc/self/fd/" + std::to_string(operation.fd);
    const int fd = open(self.c_str(), O_RDONLY | O_CLOEXEC);
    return fd < 0 ? -errno : fd;
  };
  opening_.done = [](FileOperation& operation, std::int64_t result) {
    static_cast<Opening&>(operation).queue->on_opened(result);
  };
  engine_->start(opening_);
}

void FileQueue::on_opened(std::int64_t result) {
  FileOperationList waiting = unopened_.take();
  if (result >= 0) {
    flush_fd_ = UniqueFd{static_cast<int>(result)};
  } else if (!std::exchange(complained_, true) && state_.log) {
    state_.log(rtrs::LogLevel::error, state_.path + ": cannot be opened once more for flushes (" +
                                          std::strerror(static_cast<int>(-result)) +
                                          "); writes and flushes fail until it can");
  }
  while (!waiting.empty()) {
    FileIo& io = io_of(waiting.pop());
    result >= 0 ? perform(io) : finish(io, static_cast<int>(-result));
  }
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
