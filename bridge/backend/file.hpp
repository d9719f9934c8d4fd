// SPDX-License-Identifier: BSD-3-Clause
// PATH - a regular file or a block device.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "bridge/backend/backend.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {

/// Opens a regular file or a block device, locks it, and finds out what it can do.
///
/// Errors: ENOENT, EACCES, EPERM, EROFS, EISDIR, EINVAL (neither file nor block device, empty, no
/// O_DIRECT), EBUSY (in use, mounted).
tl::expected<std::unique_ptr<Backend>, Failure> open_file(const std::string& path,
                                                          const BackendOptions& options);

/// An open file or block device, shared by the queues of all reactors. They share the open file
/// descriptions for data, because the locks are tied to these: as long as a request of this process
/// runs, even after its death, nobody else gets the locks.
struct FileState {
  std::string path;
  rtrs::OwnedFd fd;      ///< page cache; the lock
  rtrs::OwnedFd direct;  ///< O_DIRECT, or none
  BackendInfo info;
  rtrs::Log log;
  std::function<void()> on_loss;  ///< BackendOptions
  bool block_device = false;
  std::atomic<bool> told_of_end{false};  ///< the log, that the storage is gone or was cut
  bool memory_backed = false;            ///< tmpfs: reads and writes never wait for a device
  std::atomic<bool> use_uring{true};
  std::uint32_t block_size = 512;      ///< bytes; fallocate and discard on block devices
  std::uint32_t direct_alignment = 0;  ///< bytes; of offset, length and memory

  std::mutex growth;  ///< whoever looks how large it is by now
  /// Bytes; grows only, as all below. Requests end here.
  std::atomic<std::uint64_t> size{0};
  /// Everything from this offset on is only accessed through the page cache.
  std::atomic<std::uint64_t> direct_end{0};

  // False once the kernel has refused it for this file.
  std::atomic<bool> nowait_reads{true};
  std::atomic<bool> nowait_writes{true};
  std::atomic<bool> punch_hole{true};
  std::atomic<bool> zero_range{true};

  /// Set once fdatasync failed: the kernel has forgotten which writes were lost, so no later flush
  /// or FUA may promise anything.
  std::atomic<bool> flush_failed{false};

  /// Descriptors for flushes that no queue uses: closing them may block as long as closing the
  /// rest.
  std::mutex spare_mutex;
  std::vector<rtrs::OwnedFd> spare_flush_fds;
};

/// Another open file description of an open file, whatever has happened to its name: a descriptor,
/// or a negative errno.
int reopen(int fd, int flags);

/// For the flushes of a queue. None: there is none left, and none to be had. Threads: any, as the
/// next.
rtrs::OwnedFd take_flush_fd(FileState& state);
void give_back(FileState& state, rtrs::OwnedFd fd);

/// Requests may use so many bytes from now on.
///
/// Threads: one at a time.
void set_size(FileState& state, std::uint64_t size);

/// Backend::present_size().
std::uint64_t present_size_of(FileState& state);

/// Backend::whereabouts().
Whereabouts whereabouts_of(const FileState& state);

/// Whether a part of the range is not there any more: the device was taken away or has shrunk, or
/// somebody has cut the file. Never blocks.
bool is_cut(const FileState& state, std::uint64_t end);

/// The errno that a failed request ends with: an error of the kernel's that means a missing device,
/// or that it is asked for more than there is, becomes EIO. The first time the log is told.
int error_told(FileState& state, const BackendRequest& request, int error);

}  // namespace rnbd
