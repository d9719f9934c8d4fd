// SPDX-License-Identifier: BSD-3-Clause
// One thread with an event loop. Connections, sessions and block queues belong to exactly one
// reactor.
#pragma once

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <utility>

#include "rdma/core/spin_score.hpp"
#include "rdma/core/time.hpp"
#include "rdma/one_call.hpp"
#include "rdma/transport/alarm.hpp"
#include "rdma/transport/readiness.hpp"

namespace rtrs {

/// Work put off until the events at hand are handled, so that a batch costs one system call
/// (replies of one connection, submissions of one io_uring). Queued at most once at a time.
class Deferred {
 public:
  virtual void run_deferred() = 0;

 protected:
  virtual ~Deferred() = default;

 private:
  friend class Reactor;
  Deferred* next_ = nullptr;
  bool queued_ = false;
};

/// Can sleep for the whole loop, because its own next event is the only likely one.
class Soloist {
 public:
  /// Waits some milliseconds at most for its next event, and handles it. False: none came, or it
  /// cannot wait now. With `call`, what it has to send may leave with the next wait.
  virtual bool play_on(OneCall* call) = 0;
  /// The last wait is over: what it has kept to send leaves.
  virtual void play_out() = 0;

 protected:
  ~Soloist() = default;
};

/// Answers from other threads, which may come so soon that a look costs less than to be woken.
class Awaited {
 public:
  /// While the loop looks by itself, nobody has to wake it. For answers that have come when it ends
  /// that, it is woken.
  virtual void set_looked_for(bool looked_for) = 0;
  /// Handles the answers that are there. False: there are none.
  virtual bool look() = 0;

 protected:
  ~Awaited() = default;
};

/// An event loop: handles ready events, then runs deferred work, then sleeps until the next event
/// or alarm.
///
/// A connection may wait for its next request itself, when its requests come one at a time and
/// nothing else has happened for hundreds of them. Receiving costs less than being told and
/// receiving then. Everybody else waits for it meanwhile, for some requests or milliseconds.
///
/// Before it sleeps it looks for awaited answers for a while, as long as they come in that time.
///
/// Threads: run() on one thread; all else on that thread, except posting to io() and stop().
class Reactor {
 public:
  /// `make_call`: for its soloists; null: each call sends or waits.
  explicit Reactor(unsigned index, MakeOneCall make_call = nullptr)
      : index_{index}, make_call_{std::move(make_call)}, io_{1}, hang_ups_{io_} {}
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  /// 0 .. number of reactors - 1.
  unsigned index() const { return index_; }
  boost::asio::io_context& io() { return io_; }
  HangUps& hang_ups() { return hang_ups_; }
  Alarms& alarms() { return alarms_; }

  /// Runs `work` once at the end of the current batch of events.
  void defer(Deferred& work) {
    if (work.queued_) return;
    work.queued_ = true;
    work.next_ = nullptr;
    (tail_ != nullptr ? tail_->next_ : head_) = &work;
    tail_ = &work;
  }
  /// Forgets deferred work; call it before the object dies.
  void forget(Deferred& work);
  /// The event at hand was the soloist's, and it has nothing under way. It must not die in its own
  /// handlers.
  void solo(Soloist& soloist) { heard_ = &soloist; }
  /// True: another play_on() or play_out() of it follows, and can send what it has.
  bool plays(const Soloist& soloist) const { return playing_ == &soloist; }

  /// Few answers are under way, and to be looked for; null: there are none, or too many. An object
  /// must not die before it took that back.
  void await(Awaited* awaited);

  /// The rest of the time in which its connections, when all are to end, may keep others waiting
  /// until their sent data have arrived (Connection::finish()).
  Duration time_to_finish() const { return time_to_finish_; }
  void take_time_to_finish(Duration taken) { time_to_finish_ -= std::min(taken, time_to_finish_); }

  /// Until stop().
  void run();
  /// Any thread.
  void stop();

 private:
  void run_deferred();
  void let_play();
  unsigned wait();
  bool spin(unsigned& handled);

  /// Twice as long as fast storage in another process takes.
  static constexpr Duration kSpin = std::chrono::microseconds{200};

  unsigned index_;
  MakeOneCall make_call_;
  std::unique_ptr<OneCall> call_;  ///< while it runs
  Duration time_to_finish_ = std::chrono::milliseconds{500};
  Alarms alarms_;  ///< outlives what has them, which events under way may hold
  boost::asio::io_context io_;
  HangUps hang_ups_;
  Deferred* head_ = nullptr;
  Deferred* tail_ = nullptr;
  Soloist* heard_ = nullptr;    ///< in this turn
  Soloist* soloist_ = nullptr;  ///< in all turns lately; a mere address until it is heard again
  Soloist* playing_ = nullptr;  ///< with call_
  unsigned turns_ = 0;
  Awaited* awaited_ = nullptr;
  bool looking_ = false;  ///< for its answers
  SpinScore spin_{kSpin};
};

}  // namespace rtrs
