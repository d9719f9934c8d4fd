// SPDX-License-Identifier: BSD-3-Clause
// PATH - a regular file or a block device.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "bridge/backend/backend.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {

/// Opens a regular file or a block device, locks it, and finds out its abilities.
///
/// Errors: ENOENT, EACCES, EPERM, EROFS, EISDIR, EINVAL (neither file nor block device, empty, no
/// O_DIRECT), EBUSY (in use, mounted).
tl::expected<std::unique_ptr<Backend>, Failure> open_file(const std::string& path,
                                                          const BackendOptions& options);

/// An open file for one durable write at a time.
///
/// The kernel tells each open file description of lost data once. One that no other write uses
/// meanwhile tells its write of each loss since that began, so none is acknowledged that is lost.
///
/// Threads: whoever has set `taken` owns the rest.
struct LentFile {
  std::atomic<bool> taken{false};
  rtrs::OwnedFd fd;  ///< opened by the first write; without the lock
};

/// An open file or block device, shared by the queues of all reactors. They share the open file
/// descriptions for data, because these hold the locks. As long as a request of this process runs,
/// even after its death, no other process gets the locks. A thread that writes to a LentFile keeps
/// all descriptors of the process open until it ends, and so the locks, too.
struct FileState {
  /// Durable writes of one file that may hold a thread at the same time. A file that hangs keeps
  /// no more of them.
  static constexpr std::size_t kLentFiles = 4;

  std::string path;
  rtrs::OwnedFd fd;      ///< page cache; the lock
  rtrs::OwnedFd direct;  ///< O_DIRECT, or none
  BackendInfo info;
  rtrs::Log log;
  std::function<void()> on_loss;  ///< BackendOptions
  bool block_device = false;
  std::atomic<bool> told_of_end{false};  ///< that storage is missing
  bool memory_backed = false;            ///< tmpfs, where reads and writes never wait for a device
  std::atomic<bool> use_uring{true};
  std::uint32_t block_size = 512;      ///< bytes; fallocate and discard on block devices
  std::uint32_t direct_alignment = 0;  ///< bytes; of offset, length and memory

  std::mutex growth;  ///< held while the size is read again
  /// Bytes; requests must end here. This and the values below only grow.
  std::atomic<std::uint64_t> size{0};
  /// Everything from this offset on is only accessed through the page cache.
  std::atomic<std::uint64_t> direct_end{0};

  // False once the kernel has refused it for this file.
  std::atomic<bool> nowait_reads{true};
  std::atomic<bool> nowait_writes{true};
  std::atomic<bool> punch_hole{true};
  std::atomic<bool> zero_range{true};

  /// Set when fdatasync has failed. The kernel no longer knows which writes were lost, so every
  /// later flush and FUA write must fail.
  std::atomic<bool> flush_failed{false};

  std::array<LentFile, kLentFiles> lent_files;

  /// Descriptors for flushes that no queue uses at present. Closing one may block, so it is left to
  /// the end.
  std::mutex spare_mutex;
  std::vector<rtrs::OwnedFd> spare_flush_fds;
};

/// Opens an open file a second time, even if its name is gone. Returns a descriptor, or a negative
/// errno.
int reopen(int fd, int flags);

/// Lends a queue a descriptor for its flushes. None: no spare one is left, and the system has none
/// either. Threads: any, as the next.
rtrs::OwnedFd take_flush_fd(FileState& state);
void give_back(FileState& state, rtrs::OwnedFd fd);

/// Sets the number of bytes that requests may use.
///
/// Threads: one at a time.
void set_size(FileState& state, std::uint64_t size);

/// Backend::present_size().
std::uint64_t present_size_of(FileState& state);

/// Backend::shrunk_to().
std::optional<std::uint64_t> shrunk_to(const FileState& state);

/// Backend::whereabouts().
Whereabouts whereabouts_of(const FileState& state);

/// True if a part of the range no longer exists: the device was removed or has shrunk, or the file
/// was truncated. Never blocks.
bool is_cut(const FileState& state, std::uint64_t end);

/// The errno for the client of a failed request. An error that means a missing device, or a range
/// behind the end, becomes EIO, and the first one is logged.
int error_told(FileState& state, const BackendRequest& request, int error);

}  // namespace rnbd
