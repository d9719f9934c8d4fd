// SPDX-License-Identifier: BSD-3-Clause
// The memory of a queue pair that the peer may write, and that data are sent from.
#pragma once

#include <cstdint>
#include <memory>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/transport/verbs/domain.hpp"

namespace rtrs::verbs {

/// Exposes registered memory where it is, and everything else as slots of its own, registered once
/// when the path is set up (one copy, no registration per request).
///
/// Keys live as long as the path, or the registration: the device does not stop a peer from writing
/// to a window that was withdrawn. Data written to a slot are never looked at; registered memory is
/// for peers that are trusted with it.
///
/// Threads: as its queue pair.
/// Source:  QueuePair::expose(), rdma/core/queue_pair.hpp.
class Windows {
 public:
  /// The domain must live until release().
  explicit Windows(const Domain& domain) : domain_{domain} {}

  /// Slots for `count` windows of at most `bytes` each. Errors: ENOMEM.
  tl::expected<void, Failure> reserve(unsigned count, std::uint32_t bytes);

  /// Memory that need not be copied from now on.
  void know(std::shared_ptr<const Region> region);
  void forget(ConstBytes memory);
  /// The registration that memory windows are bound to: the memory that was registered first.
  ibv_mr* windowed() const { return known_.front()->registration(); }

  RemoteMemory expose(std::uint32_t window, MutableBytes memory);
  void collect(std::uint32_t window, std::uint32_t bytes) const;
  void withdraw(std::uint32_t window) { windows_[window].exposed = false; }
  ConstBytes stage(std::uint32_t window, ConstBytes data);
  MutableBytes landing(std::uint32_t window, MutableBytes into);
  bool is_staged(ConstBytes data) const { return slots_ && slots_->contains(data); }
  /// The device itself reads or writes memory of the caller for the window.
  bool works_in_place(std::uint32_t window) const {
    return window < windows_.size() && (windows_[window].sent_in_place ||
                                        (windows_[window].exposed && windows_[window].in_place));
  }

  /// Puts `header` behind data that stage() returned, so that both are sent as one element.
  void append(ConstBytes staged, ConstBytes header) const;
  /// The local key of data that stage() returned, or that lie in registered memory.
  std::uint32_t key_of(ConstBytes data) const;
  /// The device has let go of all memory.
  void release() {
    slots_.reset();
    known_.clear();
  }

 private:
  /// Memory that the caller named for a window.
  struct Window {
    MutableBytes target;
    bool exposed = false;
    bool in_place = false;
    bool sent_in_place = false;
  };

  const Region* find(ConstBytes part) const;

  MutableBytes slot(std::uint32_t window) const {
    return slots_->bytes().subspan(window * slot_size_, slot_size_);
  }

  const Domain& domain_;
  std::unique_ptr<Region> slots_;
  std::vector<std::shared_ptr<const Region>> known_;
  std::size_t slot_size_ = 0;
  std::vector<Window> windows_;
};

}  // namespace rtrs::verbs
