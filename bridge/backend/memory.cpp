// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/memory.hpp"

#include <sys/mman.h>
#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>

#include "bridge/backend/specification.hpp"
#include "rdma/transport/reactor.hpp"

namespace rnbd {

namespace {

/// The unit in which memory is taken and given back, in bytes.
constexpr std::uint64_t kBlock = 64 * 1024;
/// Given back per turn of the event loop: freeing pages costs about 0.1 ms per MiB.
constexpr std::uint64_t kDiscardStep = 16 * 1024 * 1024;

/// The memory, and a bit for each block in use. Any number of threads work on it without locks.
///
/// A block with a clear bit reads as zeroes, even if its memory holds other bytes. A write copies
/// first and then sets the bit. A discard clears the bit first and then drops the memory. So when
/// no request runs, a clear bit means that the memory is zero, and no dropped byte comes back.
class SparseMemory {
 public:
  SparseMemory(std::byte* memory, std::uint64_t size)
      : memory_{memory}, size_{size}, used_((blocks() + 63) / 64) {}
  ~SparseMemory() { munmap(memory_, blocks() * kBlock); }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;

  std::uint64_t size() const { return size_; }

  /// Calls action(block, offset, length) for the part of every block inside the range.
  template <class Action>
  static void for_each_block(std::uint64_t offset, std::uint64_t length, Action action) {
    while (length > 0) {
      const std::uint64_t part = std::min(length, kBlock - offset % kBlock);
      action(offset / kBlock, offset, part);
      offset += part;
      length -= part;
    }
  }

  bool used(std::uint64_t block) const {
    return (used_[block / 64].load(std::memory_order_acquire) >> (block % 64) & 1) != 0;
  }

  void read(std::uint64_t offset, std::uint64_t length, std::byte* data) const {
    for_each_block(offset, length, [&](std::uint64_t block, std::uint64_t at, std::uint64_t part) {
      if (used(block)) {
        std::memcpy(data, memory_ + at, part);
      } else {
        std::memset(data, 0, part);
      }
      data += part;
    });
  }

  void write(std::uint64_t offset, std::uint64_t length, const std::byte* data) {
    for_each_block(offset, length, [&](std::uint64_t block, std::uint64_t at, std::uint64_t part) {
      std::memcpy(memory_ + at, data, part);
      data += part;
      if (!used(block)) {
        used_[block / 64].fetch_or(bit(block), std::memory_order_release);
      }
    });
  }

  /// Zeroes the range and gives whole blocks back, unless `keep`.
  void zero(std::uint64_t offset, std::uint64_t length, bool keep) {
    for_each_block(offset, length, [&](std::uint64_t block, std::uint64_t at, std::uint64_t part) {
      if (!used(block)) return;
      const bool whole = part == kBlock || (at % kBlock == 0 && at + part == size_);
      if (!whole || keep) {
        std::memset(memory_ + at, 0, part);
        return;
      }
      used_[block / 64].fetch_and(~bit(block), std::memory_order_acq_rel);
      madvise(memory_ + block * kBlock, kBlock, MADV_DONTNEED);
    });
  }

  void extents(std::uint64_t offset, std::uint64_t length, std::size_t max,
               std::vector<BackendExtent>& result) const {
    bool first = true;
    bool full = false;
    std::size_t added = 0;
    for_each_block(offset, length, [&](std::uint64_t block, std::uint64_t, std::uint64_t part) {
      if (full) return;
      const bool hole = !used(block);
      if (!first && result.back().hole == hole) {
        result.back().length += part;
        return;
      }
      full = !first && added >= max;
      if (full) return;
      result.push_back({part, hole, hole});
      ++added;
      first = false;
    });
  }

 private:
  static std::uint64_t bit(std::uint64_t block) { return std::uint64_t{1} << (block % 64); }
  std::uint64_t blocks() const { return (size_ + kBlock - 1) / kBlock; }

  std::byte* memory_;
  std::uint64_t size_;
  std::vector<std::atomic<std::uint64_t>> used_;
};

class MemoryQueue final : public BackendQueue {
 public:
  MemoryQueue(SparseMemory& memory, bool read_only, rtrs::Reactor* reactor)
      : memory_{memory}, read_only_{read_only}, reactor_{reactor} {}

  void submit(BackendRequest& request) override {
    // The padding behind the end reads as zeroes and stores nothing.
    const std::uint64_t inside = request.offset >= memory_.size()
                                     ? 0
                                     : std::min(request.length, memory_.size() - request.offset);
    switch (request.operation) {
      case BackendOperation::read:
        memory_.read(request.offset, inside, request.data);
        std::memset(request.data + inside, 0, request.length - inside);
        break;
      case BackendOperation::write:
        if (read_only_) return request.done(request, EROFS);
        memory_.write(request.offset, inside, request.data);
        break;
      case BackendOperation::discard:
      case BackendOperation::write_zeroes:
        if (read_only_) return request.done(request, EROFS);
        return zero(request, request.offset, inside);
      case BackendOperation::extents:
        memory_.extents(request.offset, request.length, request.max_extents, *request.extents);
        break;
      case BackendOperation::flush:
      case BackendOperation::cache:
        break;
    }
    request.done(request, 0);
  }

 private:
  /// A step at a time, so that a discard of many gigabytes does not hold up the others.
  void zero(BackendRequest& request, std::uint64_t offset, std::uint64_t length) {
    const bool keep = request.operation == BackendOperation::write_zeroes && request.no_unmap;
    while (length > 0) {
      const std::uint64_t step = std::min(length, kDiscardStep);
      memory_.zero(offset, step, keep);
      offset += step;
      length -= step;
      if (length > 0 && reactor_ != nullptr) {
        boost::asio::post(reactor_->io(),
                          [this, &request, offset, length] { zero(request, offset, length); });
        return;
      }
    }
    request.done(request, 0);
  }

  SparseMemory& memory_;
  bool read_only_;
  rtrs::Reactor* reactor_;
};

class MemoryBackend final : public Backend {
 public:
  MemoryBackend(std::byte* memory, std::uint64_t size, bool read_only) : memory_{memory, size} {
    info_.size = size;
    info_.physical_block = 4096;
    info_.read_only = read_only;
    info_.can_discard = info_.can_write_zeroes = info_.can_fast_zero = true;
    info_.can_extents = info_.can_fua = true;
    info_.volatile_cache = false;
    info_.discard_granularity = kBlock;
    info_.outlives_server = false;
    // Each memory disk is new storage: the bytes of the last one are gone.
    if (getrandom(info_.uuid.data(), info_.uuid.size(), 0) < 0) info_.uuid.fill(0);
  }

  const BackendInfo& info() const override { return info_; }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* reactor) override {
    return std::make_unique<MemoryQueue>(memory_, info_.read_only, reactor);
  }

 private:
  SparseMemory memory_;
  BackendInfo info_;
};

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_memory(const std::string& size,
                                                            const BackendOptions& options) {
  const auto bytes = parse_size(size);
  if (!bytes) return bad_specification(EINVAL, "memory:" + size, bytes.error().text);
  if (*bytes == 0) {
    return bad_specification(EINVAL, "memory:" + size, "a size is missing, like memory:64M");
  }
  const std::uint64_t mapped = (*bytes + kBlock - 1) / kBlock * kBlock;
  void* const memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return bad_specification(ENOMEM, "memory:" + size,
                             "the system does not give that much memory; choose a smaller size");
  }
  // With huge pages the first small write would take 2 MiB.
  madvise(memory, mapped, MADV_NOHUGEPAGE);
  return std::make_unique<MemoryBackend>(static_cast<std::byte*>(memory), *bytes,
                                         options.read_only);
}

}  // namespace rnbd
