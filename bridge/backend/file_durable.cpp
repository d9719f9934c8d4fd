// SPDX-License-Identifier: BSD-3-Clause
// Durable writes (FUA) through the page cache. Some at a time are made by threads, each on an open
// file of its own; the others are plain writes, and a flush that they share.
#include <fcntl.h>
#include <sys/uio.h>

#include <cerrno>

#include "bridge/backend/file_queue.hpp"

namespace rnbd {

/// Lends the request an open file, if one is left.
bool FileQueue::lend(FileIo& io) {
  for (std::size_t i = 0; i < state_.lent_files.size(); ++i) {
    if (state_.lent_files[i].taken.exchange(true, std::memory_order_acquire)) continue;
    io.lent = static_cast<std::int8_t>(i);
    return true;
  }
  return false;
}

/// Takes the open file back. False if it could not be opened, so nothing was written.
bool FileQueue::take_back(FileIo& io) {
  LentFile& lent = state_.lent_files[static_cast<std::size_t>(io.lent)];
  const bool opened = static_cast<bool>(lent.fd);
  io.lent = FileIo::kNotLent;
  lent.taken.store(false, std::memory_order_release);
  return opened;
}

/// On a thread, since opening a file may block, too.
std::int64_t FileQueue::write_on_lent(FileOperation& operation) {
  FileIo& io = io_of(operation);
  LentFile& lent = io.queue->state_.lent_files[static_cast<std::size_t>(io.lent)];
  if (!lent.fd) lent.fd = rtrs::OwnedFd{reopen(io.fd, O_WRONLY)};
  if (!lent.fd) return lent.fd.get();
  const iovec vector{io.queue->memory_of(io), io.length};
  const auto offset = static_cast<off_t>(io.offset);
  const ssize_t result = pwritev2(lent.fd.get(), &vector, 1, offset, RWF_DSYNC);
  return result < 0 ? -errno : result;
}

/// io_uring runs writes to a regular file's page cache one after the other, each with its own wait
/// for the disk. Threads wait together.
void FileQueue::write_durably(FileIo& io) {
  if (lend(io)) {
    io.kind = FileOperation::Kind::call;
    io.call = write_on_lent;
    if (engine_->start_on_idle_thread(io)) return;
    take_back(io);
  }
  io.flush_behind = true;
  start_piece(io);
}

}  // namespace rnbd
