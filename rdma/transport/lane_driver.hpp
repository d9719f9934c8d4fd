// Where callers drive a lane: the thread that waits for an answer polls the connection itself.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "rdma/client.hpp"
#include "rdma/core/client_lane.hpp"
#include "rdma/transport/connection.hpp"

namespace rtrs {

/// Leader and followers: one waiting thread (the leader) receives for everybody and wakes the
/// others as their operations finish; when its own is finished it hands the lead to one that still
/// waits. The lane is held only while it is worked on, never while the leader sleeps, so whoever
/// has something to send takes it, sends and leaves.
///
/// Threads: run() any; the rest the session's background thread.
class LaneDriver {
 public:
  /// `on_broken` is called once, from any thread, when the connection fails; it must not call back.
  LaneDriver(std::uint16_t first_slot, std::uint16_t slots, std::unique_ptr<Connection> connection,
             std::function<void(std::string)> on_broken);
  ~LaneDriver();
  LaneDriver(const LaneDriver&) = delete;
  LaneDriver& operator=(const LaneDriver&) = delete;

  /// Runs the operation to its end. EINTR: interrupted and cancelled.
  int run(Operation& operation, const Interrupt& interrupt);

  /// For the path: gives the lane its link.
  void attach(const std::function<void(ClientLane&, QueuePair&)>& attach);
  /// Looks after a lane that nobody drives. Returns true when something arrived since the last
  /// call.
  bool service();
  /// Ends everything with `error` and closes the connection.
  void shut_down(int error);

 private:
  struct Waiter;

  void lead(std::unique_lock<std::mutex>& lock, Waiter& self, const Interrupt& interrupt);
  void follow(std::unique_lock<std::mutex>& lock, Waiter& self, const Interrupt& interrupt);
  void sleep_as_leader(std::unique_lock<std::mutex>& lock);
  void hand_over();
  Connection::Status drive();
  void link(Waiter& waiter);
  void unlink(Waiter& waiter);
  void kick();

  std::mutex mutex_;
  ClientLane lane_;
  std::unique_ptr<Connection> connection_;
  std::function<void(std::string)> on_broken_;
  bool broken_ = false;
  bool leading_ = false;
  bool more_ = false;  ///< the descriptor need not tell of what has arrived
  Waiter* followers_head_ = nullptr;
  Waiter* followers_tail_ = nullptr;
  int kick_;  ///< eventfd: wakes the leader for what its descriptor does not tell
  std::atomic<std::uint64_t> arrivals_{0};
  std::uint64_t arrivals_seen_ = 0;
};

}  // namespace rtrs
