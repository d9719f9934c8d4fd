// SPDX-License-Identifier: BSD-3-Clause
// The memory of a guest, as files of another process that are mapped here.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/vhost/messages.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd::vhost {

/// The regions of a guest, found by the guest's own addresses or by those of its front-end.
///
/// The guest writes to this memory at any time, so each value is read once and then judged. The
/// front-end can shrink the files at any time, too. An access behind a file's end is a SIGBUS,
/// which would end the process with whatever else it does. Seals do not help: few front-ends seal
/// their files, and a full file system gives the same signal for a hole. Asking the kernel to copy
/// (process_vm_readv) would be a system call for each look at a ring. So a handler of SIGBUS puts
/// empty memory in the place of a region whose file has failed, and is_lost() says so.
///
/// Invariant: regions do not overlap, and none reaches behind the end of the address space.
/// Units:     addresses and lengths are bytes.
/// Threads:   any; map() one at a time.
class GuestMemory {
 public:
  /// Maps all regions of a table. A front-end whose files are too short is told at once.
  ///
  /// Errors: a sentence.
  static tl::expected<std::shared_ptr<GuestMemory>, std::string> map(
      const MemoryTable& table, std::vector<rtrs::OwnedFd> files);
  ~GuestMemory();
  GuestMemory(const GuestMemory&) = delete;
  GuestMemory& operator=(const GuestMemory&) = delete;

  /// Copies bytes of the guest. False: they are not all inside the regions, or memory is lost, so
  /// that zeroes may have been copied.
  bool read(std::uint64_t guest, MutableBytes into) const;
  /// Copies bytes to the guest; likewise.
  bool write(std::uint64_t guest, ConstBytes from) const;
  /// The bytes at an address of the front-end. Null: they are not all inside one region.
  std::byte* at_user(std::uint64_t user, std::uint64_t length) const;
  /// True: a file has failed, and zeroes stand in its place. Earlier reads may have seen these.
  bool is_lost() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return lost_.load(std::memory_order_acquire);
  }

 private:
  struct Region {
    std::uint64_t guest = 0;
    std::uint64_t size = 0;
    std::uint64_t user = 0;
    std::byte* memory = nullptr;  ///< `size` bytes
    std::byte* mapped = nullptr;  ///< with the bytes before, back to where a page begins
    std::size_t mapped_size = 0;
  };

  GuestMemory() = default;
  std::string add(const MemoryRegion& region, int file);
  std::span<std::byte> piece_at(std::uint64_t guest, std::size_t most) const;

  std::vector<Region> regions_;
  mutable std::atomic<bool> lost_{false};
};

}  // namespace rnbd::vhost
