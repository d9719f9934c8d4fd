// SPDX-License-Identifier: BSD-3-Clause
// A thread that drives the queues of a guest over one lane.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bridge/nbd/call_pool.hpp"
#include "bridge/vhost/queue.hpp"
#include "rdma/mailbox.hpp"
#include "rdma/one_call.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd::vhost {

/// The things that the loops of one guest share.
struct LoopSurroundings {
  Disk& disk;
  const Offer& offer;
  nbd::CallPool& calls;
  const rtrs::Log& log;
  const rtrs::MakeOneCall& make_call;
  std::size_t most_memory;  ///< bytes of buffers, for one loop
  /// Called on the loop's thread when a drain has ended, or memory was lost.
  std::function<void()> changed;
};

/// An event loop over the kicks of its queues and the connections of its lane.
///
/// Threads: perform(), the constructor and the destructor one; drained() and has_lost_memory() any;
///          the rest its own.
class Loop final : private QueueHost {
 public:
  /// Throws std::system_error.
  Loop(unsigned lane, LoopSurroundings& surroundings, std::shared_ptr<Meter> meter);
  /// Waits for the thread. All queues are idle.
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  /// Runs a function between two turns, and waits for its end: a few microseconds. Throws what it
  /// throws.
  void perform(const std::function<void()>& function);

  // Inside perform().
  Queue& queue(unsigned index);
  std::map<unsigned, Queue>& queues() { return queues_; }
  /// The queue's kicks come from there from now on. False: that cannot be waited for.
  bool set_kick(unsigned queue, rtrs::OwnedFd kick);
  /// `changed` is called once when the queues that have stopped are idle.
  void tell_when_idle(std::function<bool(const Queue&)> chosen);

  /// The queues that tell_when_idle() has named are idle.
  bool is_drained() const { return drained_.load(); }
  /// Memory of the guest is gone.
  bool has_lost_memory() const { return lost_.load(); }
  void set_memory(std::shared_ptr<const GuestMemory> memory);

 private:
  /// The only thing that the next turn waits for.
  enum class Alone : std::uint8_t { no, kick, answer };

  // Of the queues.
  Disk& disk() override { return surroundings_.disk; }
  const Offer& offer() const override { return surroundings_.offer; }
  rtrs::LaneLoop& lane() override { return *lane_; }
  nbd::BufferPool& buffers() override { return buffers_; }
  std::size_t& memory_used() override { return memory_used_; }
  std::size_t most_memory() const override { return surroundings_.most_memory; }
  Meter& meter() override { return *meter_; }
  void say(rtrs::LogLevel level, const std::string& line) override;
  void call(std::function<int()> call, Request& request) override;
  void started() override { started_ = true; }

  void run();
  Alone alone() const;
  bool wait_alone();
  void wait();
  bool has_more() const;
  void want_kicks(bool wanted);
  void take_kicks(int timeout_ms);
  void flush();
  void serve_lane();
  bool take_ended();
  void serve_queues();
  void run_posted();
  void look_for_loss();
  void tell();

  const unsigned index_;
  LoopSurroundings& surroundings_;
  const std::shared_ptr<Meter> meter_;
  rtrs::Mailbox<std::function<void()>> posted_;
  nbd::BufferPool buffers_;
  std::size_t memory_used_ = 0;  ///< bytes of buffers that the queues have
  std::shared_ptr<LaneSource> source_;
  std::unique_ptr<rtrs::LaneLoop> lane_;
  std::unique_ptr<rtrs::OneCall> call_;
  std::map<unsigned, Queue> queues_;
  unsigned served_first_ = 0;  ///< a queue, in the last round
  std::map<unsigned, rtrs::OwnedFd> kicks_;
  rtrs::OwnedFd kicked_;  ///< an epoll instance over them
  std::shared_ptr<const GuestMemory> memory_;
  std::function<bool(const Queue&)> draining_;  ///< null: nobody waits
  std::atomic<bool> drained_{false};
  std::atomic<bool> lost_{false};

  std::vector<pollfd> polled_;
  std::size_t under_way_ = 0;  ///< on the lane, at the last wait
  bool more_ = false;          ///< the lane has more to receive
  bool started_ = false;       ///< something waits for flush()
  bool answered_ = false;      ///< since the last wait, so that a request is likely to follow
  bool sent_ = false;          ///< since the last wait: an answer is likely to follow
  bool ending_ = false;
  unsigned alone_ = 0;  ///< turns in a row that waited for one descriptor only
  std::thread thread_;
};

}  // namespace rnbd::vhost
