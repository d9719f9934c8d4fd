// SPDX-License-Identifier: BSD-3-Clause
// The file engine on io_uring: submissions of a batch of events go out with one system call, and
// completions wake the reactor through the ring's own descriptor.
#include <liburing.h>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>

#include "bridge/backend/file_engine.hpp"
#include "rdma/transport/reactor.hpp"

namespace rnbd {

namespace {

/// Submissions per system call; more wait for the next one.
constexpr unsigned kEntries = 256;
/// Bytes per submission: io_uring counts them in 32 bits, and the kernel transfers at most 2 GiB
/// less a page at once. The caller continues short transfers.
constexpr std::uint64_t kMaxTransfer = 1024 * 1024 * 1024;

class UringEngine final : public FileEngine, private rtrs::Deferred {
 public:
  /// Takes over an initialised ring.
  UringEngine(rtrs::Reactor& reactor, const io_uring& ring)
      : reactor_{reactor},
        ring_{ring},
        descriptor_{reactor.io(), ring.ring_fd},
        waiter_{std::make_shared<UringEngine*>(this)} {}

  ~UringEngine() override {
    reactor_.forget(*this);
    *waiter_ = nullptr;
    descriptor_.release();
    io_uring_queue_exit(&ring_);
  }
  UringEngine(const UringEngine&) = delete;
  UringEngine& operator=(const UringEngine&) = delete;

  void start(FileOperation& operation) override {
    if (operation.kind == FileOperation::Kind::call) return threads().start(operation);
    waiting_.push(operation);
    reactor_.defer(*this);
  }

  bool start_on_idle_thread(FileOperation& operation) override {
    return threads().start_on_idle_thread(operation);
  }

 private:
  FileEngine& threads() {
    if (threads_ == nullptr) threads_ = make_thread_engine(reactor_);
    return *threads_;
  }

  void run_deferred() override {
    submit();
    // Requests that did not have to wait are done already.
    reap();
    if (in_flight_ > 0) arm();
  }

  /// Moves waiting operations into the ring while there is room.
  void submit() {
    // More in flight than the completion queue holds would have to be flushed out of the kernel.
    while (!waiting_.empty() && in_flight_ < ring_.cq.ring_entries) {
      io_uring_sqe* const sqe = io_uring_get_sqe(&ring_);
      if (sqe == nullptr) break;
      FileOperation& operation = waiting_.pop();
      prepare(*sqe, operation);
      io_uring_sqe_set_data(sqe, &operation);
      ++in_flight_;
      ++unsubmitted_;
    }
    if (unsubmitted_ == 0) return;
    const int submitted = io_uring_submit(&ring_);
    if (submitted > 0) unsubmitted_ -= static_cast<unsigned>(submitted);
    // The ring is full, or the kernel is short of memory (EAGAIN, EBUSY) or was interrupted. The
    // rest stays in the ring and is submitted with the next batch of events.
    if (unsubmitted_ > 0 || !waiting_.empty()) retry();
  }

  /// Completions make room; without any to come, only another try does.
  void retry() {
    if (in_flight_ > unsubmitted_) return;
    reactor_.defer(*this);
  }

  static void prepare(io_uring_sqe& sqe, const FileOperation& operation) {
    const auto length = static_cast<unsigned>(std::min(operation.length, kMaxTransfer));
    switch (operation.kind) {
      case FileOperation::Kind::read:
        io_uring_prep_read(&sqe, operation.fd, operation.memory, length, operation.offset);
        sqe.rw_flags = operation.flags;
        break;
      case FileOperation::Kind::write:
        io_uring_prep_write(&sqe, operation.fd, operation.memory, length, operation.offset);
        sqe.rw_flags = operation.flags;
        break;
      case FileOperation::Kind::sync:
        io_uring_prep_fsync(&sqe, operation.fd, IORING_FSYNC_DATASYNC);
        break;
      case FileOperation::Kind::allocate:
        io_uring_prep_fallocate(&sqe, operation.fd, operation.flags,
                                static_cast<off_t>(operation.offset),
                                static_cast<off_t>(operation.length));
        break;
      case FileOperation::Kind::advise:
        io_uring_prep_fadvise(&sqe, operation.fd, operation.offset, static_cast<off_t>(length),
                              operation.flags);
        break;
      case FileOperation::Kind::call:
        break;
    }
  }

  void reap() {
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0) {
      auto& operation = *static_cast<FileOperation*>(io_uring_cqe_get_data(cqe));
      const std::int64_t result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      --in_flight_;
      if (result == -EINTR || result == -EAGAIN) {
        start(operation);
      } else if (result == -ECANCELED) {
        // Not by us: the kernel got no thread of its own for it (TasksMax=, ulimit -u).
        threads().start(operation);
      } else {
        operation.done(operation, result);
      }
    }
    if (unsubmitted_ > 0 || !waiting_.empty()) reactor_.defer(*this);
  }

  /// Waits for the ring to hold completions. The ring's own descriptor is as good as an eventfd and
  /// needs no reading.
  void arm() {
    if (armed_) return;
    armed_ = true;
    descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                           [waiter = waiter_](const boost::system::error_code&) {
                             UringEngine* const engine = *waiter;
                             if (engine != nullptr) engine->on_ready();
                           });
  }

  void on_ready() {
    armed_ = false;
    reap();
    if (in_flight_ > 0) arm();
  }

  rtrs::Reactor& reactor_;
  io_uring ring_;
  boost::asio::posix::stream_descriptor descriptor_;
  /// Handlers that outlive the engine find null here.
  std::shared_ptr<UringEngine*> waiter_;
  std::unique_ptr<FileEngine> threads_;
  FileOperationList waiting_;
  unsigned in_flight_ = 0;    ///< in the ring, submitted or not
  unsigned unsubmitted_ = 0;  ///< in the ring, not yet seen by the kernel
  bool armed_ = false;
};

bool has_operations(io_uring& ring) {
  io_uring_probe* const probe = io_uring_get_probe_ring(&ring);
  if (probe == nullptr) return false;
  bool all = true;
  for (const int operation :
       {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_FSYNC, IORING_OP_FALLOCATE, IORING_OP_FADVISE}) {
    all = all && io_uring_opcode_supported(probe, operation) != 0;
  }
  io_uring_free_probe(probe);
  return all;
}

}  // namespace

std::unique_ptr<FileEngine> make_uring_engine(rtrs::Reactor& reactor) {
  io_uring ring;
  // No interrupts for completions: the reactor enters the kernel soon enough. Linux 5.19; older
  // ones refuse the flag.
  int error = io_uring_queue_init(kEntries, &ring, IORING_SETUP_COOP_TASKRUN);
  if (error == -EINVAL) error = io_uring_queue_init(kEntries, &ring, 0);
  if (error != 0) return nullptr;
  if ((ring.features & IORING_FEAT_NODROP) == 0 || !has_operations(ring)) {
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  return std::make_unique<UringEngine>(reactor, ring);
}

}  // namespace rnbd
