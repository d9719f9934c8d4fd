// SPDX-License-Identifier: BSD-3-Clause
// One user's disk behind the C interface: requests in, ends out, all on the user's thread.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bridge/librnbd/attachment.hpp"
#include "bridge/nbd/call_pool.hpp"
#include "rdma/library/birthplace.hpp"
#include "rdma/mailbox.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd::library {

/// Invariant: each request that was taken is in one state, and its end is told once.
/// Threads:   one at a time.
class Handle {
 public:
  /// Throws std::system_error, std::bad_alloc.
  explicit Handle(std::unique_ptr<Place> place);
  /// Cancels what is under way, and waits until nothing of it touches memory of the user.
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  /// In a child of fork() nothing may be done with it.
  bool left_behind() const { return birthplace_.left(); }
  Attachment& attachment() { return place_->attachment(); }
  Disk& disk() { return place_->disk(); }
  unsigned pending() const { return pending_; }
  bool is_full() const { return free_ == nullptr; }

  /// Returns the number of those that were taken.
  std::size_t submit(std::span<const rnbd_request> requests);
  /// Returns the number of ends. `timeout`: milliseconds, negative = without limit.
  std::size_t reap(std::span<rnbd_end> ends, int timeout);
  /// Carries out one request, while there are no others. Returns its error.
  int run_alone(const rnbd_request& request);
  /// Readable while there is something to do. Throws std::system_error, std::bad_alloc.
  int descriptor();

 private:
  struct Request {
    enum class State : std::uint8_t {
      free,
      on_lane,  ///< `job` is under way; then it has `ended`, or is `calling`
      calling,  ///< a thread that may wait has it; then it has `ended`
      ended,    ///< its end waits for the user; then it is `free`
    };

    State state = State::free;
    bool looks = false;  ///< for the size
    std::uint64_t cookie = 0;
    Transfer wanted;       ///< as the user has asked for it
    Transfer transfer;     ///< as it is sent
    Disk* disk = nullptr;  ///< the handle's
    Disk::Begun begun;
    std::optional<TransferOperation> operation;
    rtrs::LaneLoop::Job job;
    int error = 0;
    Request* next = nullptr;  ///< of those that are free, or have ended
  };

  void take(const rnbd_request& from);
  int read(const rnbd_request& from, Request& request) const;
  void begin(Request& request);
  void call(Request& request);
  int run(Request& request);
  int look();
  void on_lane(Request& request);
  void on_call(Request& request);
  void end(Request& request, int error);
  void take_ended();
  std::size_t tell(std::span<rnbd_end> ends);
  bool wait(int timeout);
  void watch() noexcept;
  void watch_lane();
  bool change_watch();
  void renew_watch();
  void set_up_watch();
  void cancel_all();

  const rtrs::library::Birthplace birthplace_{};
  const std::unique_ptr<Place> place_;
  std::vector<Request> requests_;  ///< all that there ever are
  Request* free_ = nullptr;
  Request* first_ended_ = nullptr;
  Request* last_ended_ = nullptr;
  unsigned pending_ = 0;  ///< neither free nor told
  unsigned on_lane_ = 0;  ///< of them
  unsigned calling_ = 0;  ///< likewise
  bool more_ = false;     ///< the lane has more to receive
  std::vector<pollfd> polled_;

  rtrs::Mailbox<Request*> called_;  ///< calls that have ended
  std::vector<Request*> letters_;
  std::atomic<bool> given_up_{false};         ///< read by calls
  std::atomic<std::uint64_t> found_size_{0};  ///< by looks; bytes
  std::mutex look_mutex_;
  Disk* observer_ = nullptr;  ///< guarded by look_mutex_

  /// For the user's own loop: what polled_ has, as one descriptor. None: nobody asked for it.
  struct Watch {
    rtrs::OwnedFd outer;  ///< an epoll instance with `inner`, and what never changes
    rtrs::OwnedFd inner;  ///< likewise, with the descriptors of the lane
    rtrs::WakeUp due;     ///< readable while there are ends, or more to receive
    bool is_due = false;
    bool kicked = true;  ///< connections may have come under numbers of others
    std::vector<pollfd> known;
    std::vector<pollfd> wanted;
  };
  std::optional<Watch> watch_;
  /// Made when it is needed. Each handle has its own: calls of another one, which may wait for
  /// long, must not keep those of this one from being given up. Ends before what its calls use.
  std::optional<nbd::CallPool> calls_;
};

}  // namespace rnbd::library
