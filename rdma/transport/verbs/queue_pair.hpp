// SPDX-License-Identifier: BSD-3-Clause
// A queue pair of an RDMA device.
#pragma once

#include <infiniband/verbs.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <tl/expected.hpp>

#include "rdma/transport/connection.hpp"
#include "rdma/transport/verbs/cm.hpp"
#include "rdma/transport/verbs/completion_queue.hpp"
#include "rdma/transport/verbs/domain.hpp"
#include "rdma/transport/verbs/receive_queue.hpp"
#include "rdma/transport/verbs/send_queue.hpp"
#include "rdma/transport/verbs/windows.hpp"

namespace rtrs::verbs {

/// A reliable connection over verbs.
///
/// Threads: one at a time; made and closed by its driver.
/// Source:  docs/protocol.md, RDMA parameters; ibv_post_send(3), rdma_cm(7).
class VerbsQueuePair final : public Connection {
 public:
  /// The most that is inlined; less when the device cannot. For tests.
  static constexpr unsigned kInline = sizeof(Post::copy);

  /// Makes the queue pair of an id that knows its device (address resolved, or a request that came
  /// in).
  ///
  /// Errors: ENOMEM, EINVAL: the device's refusal. The id stays the caller's then.
  static tl::expected<std::unique_ptr<VerbsQueuePair>, Failure> create(
      CmId&& id, std::shared_ptr<Domain> domain, const QueueSizes& sizes,
      unsigned inlined = kInline);
  ~VerbsQueuePair() override;
  VerbsQueuePair(const VerbsQueuePair&) = delete;
  VerbsQueuePair& operator=(const VerbsQueuePair&) = delete;

  /// 0.64 ms: how long a peer waits that found no receive posted; the default is 655 ms.
  /// Source: ibv_modify_qp(3), min_rnr_timer.
  static constexpr std::uint8_t kRnrTimer = 12;

  const CmId& id() const { return id_; }
  enum class End { client, server };

  /// The connection stands: sets the parameters that could not be set before.
  ///
  /// Errors: the device's refusal; the connection is of no use then.
  /// Source: docs/protocol.md, RDMA parameters.
  tl::expected<void, Failure> on_established(End end = End::client);

  tl::expected<void, Failure> reserve_windows(unsigned count, std::uint32_t bytes) override {
    return windows_.reserve(count, bytes);
  }
  tl::expected<void, Failure> reserve_keys(unsigned count) override {
    return domain_->reserve_keys(count);
  }
  tl::expected<void, Failure> register_memory(MutableBytes memory) override;
  void forget_memory(MutableBytes memory) override { windows_.forget(memory); }

  Ticket write_with_immediate(RemoteMemory to, ConstBytes data, ConstBytes header,
                              std::uint32_t immediate) override;
  Ticket write(RemoteMemory to, ConstBytes data) override;
  Ticket send(ConstBytes message) override;
  Ticket send_with_immediate(ConstBytes message, std::uint32_t immediate) override;
  Ticket send_with_invalidate(std::uint32_t key) override;
  Ticket read(RemoteMemory from, MutableBytes into) override;
  Ticket write_confirmed(RemoteMemory to, ConstBytes data) override;
  MutableBytes landing(std::uint32_t window, MutableBytes into) override {
    return windows_.landing(window, into);
  }
  void post_receives(unsigned count, std::uint32_t bytes) override;
  RemoteMemory expose(std::uint32_t window, MutableBytes memory) override;
  bool collect(std::uint32_t window, std::uint32_t bytes) override {
    windows_.collect(window, bytes);
    return true;
  }
  void withdraw(std::uint32_t window) override { windows_.withdraw(window); }
  void abandon(std::uint32_t window) override;
  bool works_in_place(std::uint32_t window) const override {
    return windows_.works_in_place(window);
  }
  void revoke(std::uint32_t window) override;
  ConstBytes stage(std::uint32_t window, ConstBytes data) override {
    return windows_.stage(window, data);
  }
  void flush() override;
  /// All data are in registered memory that stays, so posting to the device is enough.
  Ticket sent() const override { return std::max(sends_->last_posted(), disowned_); }
  /// The addresses and numbers of both queue pairs, the connecting side's first; zeros over iWARP.
  Binding binding() const override;
  /// A send counts when the device tells of its end, and an arrival not before its end.
  std::uint64_t carried() const override { return sends_->completed() * kMaxInline; }
  void disown_unsent() override { disowned_ = sends_->last_pushed(); }

  Status progress(QueuePairHandler& handler) override;
  Status glance(QueuePairHandler& handler) override;
  int descriptor() const override { return events_; }
  bool wants_to_write() const override { return usable() && !sends_->empty(); }
  bool finish(Instant until) override;
  void close() override;
  const std::string& failure() const override { return failure_; }
  std::string statistics() const override;

 private:
  /// Marks the ids of binds among those of all work requests; below it stands the window.
  static constexpr std::uint64_t kBindBit = std::uint64_t{1} << 62;

  VerbsQueuePair(CmId id, std::shared_ptr<Domain> domain);
  tl::expected<void, Failure> build(const QueueSizes& sizes, unsigned inlined);
  tl::expected<void, Failure> watch();
  void release();
  bool bind(ibv_mw* key_window, ConstBytes memory, std::uint64_t id, unsigned flags);
  void attach_data(Post& post, ConstBytes data) const;
  Ticket posted();
  Ticket post_message(ibv_wr_opcode opcode, ConstBytes message, std::uint32_t immediate);
  bool arm();
  bool collect_sends();
  bool end_by_peer();
  bool on_completion(const ibv_wc& completion, QueuePairHandler& handler);
  Ticket post_confirmed(ibv_wr_opcode opcode, RemoteMemory where, ConstBytes memory);
  bool on_sent(Ticket ticket, QueuePairHandler& handler);
  bool on_receive(const ibv_wc& completion, QueuePairHandler& handler);
  Status read(QueuePairHandler& handler, bool& quiet);
  void read_events();
  void read_cm_events();
  bool fail(std::string why);
  Status failed_status();
  bool usable() const { return queue_pair_ != nullptr && failure_.empty(); }

  std::shared_ptr<Domain> domain_;
  CmId id_;
  std::unique_ptr<CompletionQueue> completions_;
  ibv_qp* queue_pair_ = nullptr;
  /// An epoll descriptor over the channels of completions and id; see AsyncEvents, too.
  int events_ = -1;
  std::unique_ptr<SendQueue> sends_;
  std::unique_ptr<ReceiveQueue> receives_;
  Windows windows_;
  End end_ = End::client;
  Ticket disowned_ = 0;
  std::array<Ticket, kMaxUnconfirmed> unconfirmed_{};  ///< a ring
  std::size_t first_unconfirmed_ = 0;
  std::size_t end_unconfirmed_ = 0;
  std::uint64_t arrivals_ = 0;
  std::uint64_t send_completions_ = 0;
  bool progressing_ = false;
  bool told_ = false;            ///< the descriptor has told of completions, and perhaps of more
  bool closed_by_peer_ = false;  ///< earlier arrivals are still to be read
  bool ended_by_peer_ = false;   ///< the peer's close is its failure
  std::atomic<const char*> trouble_{nullptr};  ///< that the device has told of
  std::string failure_;
};

}  // namespace rtrs::verbs
