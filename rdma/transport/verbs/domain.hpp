// SPDX-License-Identifier: BSD-3-Clause
// Protection domains and registered memory.
#pragma once

#include <infiniband/verbs.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "rdma/core/option_words.hpp"
#include "rdma/failure.hpp"
#include "rdma/log.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/transport/verbs/async_events.hpp"

namespace rtrs::verbs {

/// "the RDMA device refused a memory window: ...", with the remedy if memory is short.
Failure refused(const char* what, int error);
/// "no queue pair for 515 sends and 257 receives: ...", with the device's own limit and the remedy:
/// the numbers follow from the server's queue depth.
///
/// Errors: `error`.
Failure refused_queue_pair(const char* device, const ibv_qp_cap& asked, unsigned limit, int error,
                           const OptionWords& words);
/// "no completion queue of 33000 entries", likewise.
///
/// Errors: ENOMEM.
Failure refused_completions(const char* device, unsigned asked, unsigned limit,
                            const OptionWords& words);

/// Memory windows, which always-invalidate needs: a device may have none.
///
/// Errors: ENOTSUP, with the device's name and the remedy.
tl::expected<void, Failure> can_reserve_keys(ibv_context* device);

/// The number of reads that one of its connections can have under way, or answer, at once.
std::uint8_t reads_at_once(ibv_context* device);

/// Memory that the device may read, and the peer may write. Deregistered when it dies.
///
/// Source: ibv_reg_mr(3).
class Region {
 public:
  /// Fresh memory of its own, zeroed.
  ///
  /// Errors: ENOMEM when it cannot be had or locked.
  static tl::expected<std::unique_ptr<Region>, Failure> allocate(ibv_pd* domain, std::size_t size,
                                                                 bool peer_writes = false);
  /// Memory of somebody else, which must outlive the region. More than kMostAtOnce is registered in
  /// pieces, unless memory windows are to be bound to it. Soft-RoCE has no room for the table of
  /// more (1 GiB that begins inside a page, on Linux 6.12).
  static tl::expected<std::shared_ptr<Region>, Failure> adopt(ibv_pd* domain, MutableBytes memory,
                                                              bool with_windows = false);
  /// The same for a peer that uses it in the ways of `access` (RegionAccess).
  static tl::expected<std::shared_ptr<Region>, Failure> open(ibv_pd* domain, MutableBytes memory,
                                                             unsigned access);
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  MutableBytes bytes() const { return bytes_; }
  /// False: it has no such part, or the part lies across pieces. Those overlap by kOverlap.
  bool contains(ConstBytes part) const;
  bool is(ConstBytes memory) const {
    return memory.data() == bytes_.data() && memory.size() == bytes_.size();
  }
  /// The registration of memory in one piece.
  ibv_mr* registration() const { return registrations_.front(); }
  std::uint32_t local_key() const { return registration()->lkey; }
  std::uint32_t remote_key() const { return registration()->rkey; }
  /// The key of a part that the region contains.
  std::uint32_t local_key(ConstBytes part) const { return registrations_[piece_of(part)]->lkey; }
  std::uint32_t remote_key(ConstBytes part) const { return registrations_[piece_of(part)]->rkey; }

  static constexpr std::size_t kMostAtOnce = std::size_t{1} << 28;  ///< bytes; a server has no more
  static constexpr std::size_t kOverlap = std::size_t{1} << 24;     ///< bytes

 private:
  static constexpr std::size_t kStride = kMostAtOnce - kOverlap;  ///< bytes

  Region(MutableBytes bytes, bool owned) : bytes_{bytes}, owned_{owned} {}
  tl::expected<void, Failure> register_with(ibv_pd* domain, int access, std::size_t at_once);
  /// The piece that goes on longest behind the part's first byte.
  std::size_t piece_of(ConstBytes part) const;

  MutableBytes bytes_;
  bool owned_;
  std::vector<ibv_mr*> registrations_;  ///< of its pieces, each kStride further on
};

/// Ends registrations where nobody waits: a device may take long for it. The thread exists from the
/// first add() on.
///
/// Threads: add() and finish() one at a time.
class Retirement {
 public:
  struct Job {
    std::vector<std::shared_ptr<Region>> regions;  ///< nobody else has them
    std::function<void()> dead;                    ///< called on the thread, when they are gone
  };

  Retirement() = default;
  ~Retirement();
  Retirement(const Retirement&) = delete;
  Retirement& operator=(const Retirement&) = delete;

  void add(Job job);
  /// Waits for all jobs; there must be no more.
  void finish();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool finishing_ = false;
  std::thread thread_;
};

/// The state shared by the connections of one path: a protection domain of their own, so that no
/// key of one client opens the memory of another.
///
/// Threads: adopt(), reserve_keys(), expose() and the retirements one at a time; the rest any.
class Domain final : public PathContext, public Regions {
 public:
  /// `log` hears of the device and its ports. `words` must outlive the domain.
  ///
  /// Errors: ENOMEM.
  static tl::expected<std::shared_ptr<Domain>, Failure> create(
      ibv_context* device, Log log = {}, const OptionWords& words = kProgramWords);
  ~Domain() override;
  Domain(const Domain&) = delete;
  Domain& operator=(const Domain&) = delete;

  ibv_context* device() const { return device_; }
  ibv_pd* handle() const { return handle_; }
  AsyncEvents& events() const { return *events_; }
  const OptionWords& words() const { return words_; }

  /// Registers memory once for all connections, and for as long as one of them has the region. That
  /// must end before the domain does.
  ///
  /// Errors: ENOMEM.
  tl::expected<std::shared_ptr<const Region>, Failure> adopt(MutableBytes memory);
  Regions* regions() override { return this; }
  /// A registration of its own for each region: devices enforce its bounds, and when it has ended
  /// nothing lands any more. Neither is so with memory windows on soft-RoCE.
  tl::expected<RemoteMemory, int> expose(MutableBytes memory, unsigned access) override;
  void retire(RemoteMemory where, std::function<void()> dead) override;
  void retire_all(std::function<void()> dead) override;
  /// Memory windows of type 1, one for each window of the path: their keys are good on all of its
  /// connections.
  ///
  /// Errors: can_reserve_keys(), ENOMEM.
  /// Source: ibv_alloc_mw(3), ibv_bind_mw(3).
  tl::expected<void, Failure> reserve_keys(unsigned count);
  /// Null without reserve_keys().
  ibv_mw* key_window(std::uint32_t window) const {
    return window < key_windows_.size() ? key_windows_[window] : nullptr;
  }

 private:
  Domain(ibv_context* device, ibv_pd* handle, std::shared_ptr<AsyncEvents> events,
         const OptionWords& words)
      : device_{device}, handle_{handle}, events_{std::move(events)}, words_{words} {}

  ibv_context* device_;
  ibv_pd* handle_;
  const std::shared_ptr<AsyncEvents> events_;
  const OptionWords& words_;
  std::vector<std::weak_ptr<const Region>> regions_;
  std::vector<ibv_mw*> key_windows_;
  std::map<std::uint32_t, std::shared_ptr<Region>> exposed_;  ///< by key
  Retirement retirement_;                                     ///< ends before handle_ does
};

}  // namespace rtrs::verbs
