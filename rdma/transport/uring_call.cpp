// SPDX-License-Identifier: BSD-3-Clause
#include <liburing.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstdint>

#include "rdma/one_call.hpp"
#include "rdma/wire/ensure.hpp"

namespace rtrs {
namespace {

constexpr unsigned kEntries = 4;  ///< a send, a receive, the end of that, and a tick
/// A clock of its own for each wait would cost more than the system call that is saved: to set the
/// CPU's timer takes a virtual machine microseconds. So there is one tick for many waits.
constexpr std::chrono::nanoseconds kTick = std::chrono::milliseconds{2};

class UringCall final : public OneCall {
 public:
  /// Takes over an initialised ring.
  explicit UringCall(const io_uring& ring) : ring_{ring} {
    io_uring_register_ring_fd(&ring_);  // which only makes it faster
  }
  ~UringCall() override { io_uring_queue_exit(&ring_); }
  UringCall(const UringCall&) = delete;
  UringCall& operator=(const UringCall&) = delete;

  Result exchange(int socket, std::span<const iovec> from, std::span<std::byte> into,
                  Duration limit) override {
    result_ = {-EAGAIN, -EAGAIN};
    reap();  // a tick of before
    send(socket, from);
    io_uring_sqe* const receive = entry(kReceive);
    io_uring_prep_recv(receive, socket, into.data(), into.size(), 0);
    receive->ioprio |= IORING_RECVSEND_POLL_FIRST;  // nothing has come yet, as a rule
    io_uring_sqe_set_data64(receive, kReceive);
    ticks_ = 0;
    while (under_way_ > 0 && ticks_ * kTick <= limit) {
      if (!ticking_) tick();
      if (!enter()) break;
      reap();
    }
    if (under_way_ > 0) give_up();
    return result_;
  }

 private:
  enum Tag : std::uint64_t { kSend, kReceive, kCancel, kTicked };

  /// A place for an operation. There always is one: few are under way.
  io_uring_sqe* entry(Tag tag) {
    if (tag != kTicked) ++under_way_;
    return io_uring_get_sqe(&ring_);
  }

  void send(int socket, std::span<const iovec> from) {
    constexpr int kHow = MSG_NOSIGNAL | MSG_DONTWAIT;
    io_uring_sqe* const send = entry(kSend);
    if (from.size() == 1) {
      io_uring_prep_send(send, socket, from[0].iov_base, from[0].iov_len, kHow);
    } else {
      message_.msg_iov = const_cast<iovec*>(from.data());
      message_.msg_iovlen = from.size();
      io_uring_prep_sendmsg(send, socket, &message_, kHow);
    }
    io_uring_sqe_set_data64(send, kSend);
  }

  void tick() {
    io_uring_sqe* const tick = entry(kTicked);
    io_uring_prep_timeout(tick, &tick_, 0, 0);
    io_uring_sqe_set_data64(tick, kTicked);
    ticking_ = true;
  }

  /// False: nothing came, or a signal.
  bool enter() {
    const int error = io_uring_submit_and_wait(&ring_, under_way_);
    RTRS_ENSURE(error >= 0 || error == -EINTR || error == -EAGAIN || error == -EBUSY);
    return error >= 0;
  }

  /// Nothing has come in time, or a signal has. Bytes that come until the receive has ended count.
  void give_up() {
    io_uring_sqe* const cancel = entry(kCancel);
    io_uring_prep_cancel64(cancel, kReceive, 0);
    io_uring_sqe_set_data64(cancel, kCancel);
    while (under_way_ > 0) {
      enter();
      reap();
    }
  }

  /// Only what enter() has brought: the kernel tells nothing between two.
  void reap() {
    io_uring_cqe* completion = nullptr;
    unsigned head = 0;
    unsigned count = 0;
    io_uring_for_each_cqe(&ring_, head, completion) {
      take(io_uring_cqe_get_data64(completion), completion->res);
      ++count;
    }
    io_uring_cq_advance(&ring_, count);
  }

  void take(std::uint64_t tag, int result) {
    if (tag == kTicked) {
      ticking_ = false;
      ++ticks_;
      return;
    }
    --under_way_;
    if (tag == kSend) result_.sent = result == -EINTR ? -EAGAIN : result;
    const bool came = result != -ECANCELED && result != -EINTR;
    if (tag == kReceive && came) result_.received = result;
  }

  io_uring ring_;
  msghdr message_{};
  Result result_;
  unsigned under_way_ = 0;  ///< beside the tick, with those that the kernel has not seen yet
  __kernel_timespec tick_{.tv_sec = 0, .tv_nsec = kTick.count()};
  bool ticking_ = false;
  unsigned ticks_ = 0;  ///< in this exchange
};

}  // namespace

std::unique_ptr<OneCall> make_uring_call() {
  io_uring ring;
  // The kernel looks for completions when this thread enters it, and at no other time.
  const unsigned flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
  if (io_uring_queue_init(kEntries, &ring, flags) != 0) return nullptr;
  // A filter of system calls may forbid only its use.
  io_uring_prep_nop(io_uring_get_sqe(&ring));
  io_uring_cqe* completion = nullptr;
  if (io_uring_submit_and_wait(&ring, 1) != 1 || io_uring_peek_cqe(&ring, &completion) != 0) {
    io_uring_queue_exit(&ring);
    return nullptr;
  }
  io_uring_cqe_seen(&ring, completion);
  return std::make_unique<UringCall>(ring);
}

}  // namespace rtrs
