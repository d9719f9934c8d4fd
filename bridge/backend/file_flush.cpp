// Flushes of a file: one at a time; who comes later waits for the next one, which covers all that
// wait. A flush may only succeed if no error was lost on the way to the disk.
#include <cerrno>
#include <cstring>

#include "bridge/backend/file_queue.hpp"

namespace rnbd {

/// Ends an operation that is durable only after a flush.
void FileQueue::finish_durably(FileIo& io) { io.request->fua ? sync(io) : finish(io, 0); }

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
                   "); written data may be lost, and every later flush fails; see to the disk, "
                   "then restart the server");
  }
  const int error = result < 0 ? static_cast<int>(-result) : state_.flush_failed ? EIO : 0;
  FileOperationList finished = sync_running_.take();
  if (!sync_waiting_.empty()) start_sync();
  while (!finished.empty()) finish(io_of(finished.pop()), error);
}

}  // namespace rnbd
