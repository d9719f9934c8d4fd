// SPDX-License-Identifier: BSD-3-Clause
// The memory of a queue pair that the peer may write, and that data are sent from.
#pragma once

#include <cstdint>
#include <memory>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/transport/verbs/domain.hpp"

namespace rtrs::verbs {

/// Exposes memory that the domain knows where it is, and everything else as slots of its own,
/// registered once when the path is set up (one copy, no registration per request).
///
/// Keys live as long as the path: the device does not stop a peer from writing to a window that was
/// withdrawn, but what it writes there is never looked at.
///
/// Threads: as its queue pair.
/// Source:  QueuePair::expose(), rdma/core/queue_pair.hpp.
class Windows {
 public:
  /// The domain must live until release().
  explicit Windows(const Domain& domain) : domain_{domain} {}

  /// Slots for `count` windows of at most `bytes` each. Errors: ENOMEM.
  tl::expected<void, Failure> reserve(unsigned count, std::uint32_t bytes);

  RemoteMemory expose(std::uint32_t window, MutableBytes memory);
  void collect(std::uint32_t window, std::uint32_t bytes) const;
  void withdraw(std::uint32_t window) { windows_[window].exposed = false; }
  ConstBytes stage(std::uint32_t window, ConstBytes data) const;

  /// Puts `header` behind data that stage() returned, so that both are sent as one element.
  void append(ConstBytes staged, ConstBytes header) const;
  /// The local key of data that stage() returned, or that lie in memory of the domain.
  std::uint32_t key_of(ConstBytes data) const;
  /// The device has let go of all memory.
  void release() { slots_.reset(); }

 private:
  /// Memory that the caller named for a window.
  struct Window {
    MutableBytes target;
    bool exposed = false;
    bool in_place = false;
  };

  MutableBytes slot(std::uint32_t window) const {
    return slots_->bytes().subspan(window * slot_size_, slot_size_);
  }
  bool is_staged(ConstBytes data) const { return slots_ && slots_->contains(data); }

  const Domain& domain_;
  std::unique_ptr<Region> slots_;
  std::size_t slot_size_ = 0;
  std::vector<Window> windows_;
};

}  // namespace rtrs::verbs
