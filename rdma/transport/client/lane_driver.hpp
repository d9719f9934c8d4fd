// SPDX-License-Identifier: BSD-3-Clause
// A lane that callers drive: the thread that waits for an answer polls the connections itself.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "rdma/client.hpp"
#include "rdma/core/client/lane.hpp"
#include "rdma/core/spin_score.hpp"
#include "rdma/mailbox.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/transport/readiness.hpp"

namespace rtrs {

/// The owner of a lane.
class LaneDriverOwner {
 public:
  /// The connection of a path has failed. From any thread, with the lane held.
  virtual void on_broken(PathLife life, std::string why) = 0;
  /// A request was sent while nobody looked at the race. From any thread, with the lane held.
  virtual void on_busy() = 0;

 protected:
  ~LaneDriverOwner() = default;
};

/// Leader and followers: one waiting thread (the leader) receives for everybody and wakes the
/// others as their operations finish. When its own is finished it hands the lead to one that still
/// waits. The lane is held only while it is worked on, never while the leader sleeps, so a thread
/// with something to send takes it, sends and leaves. A thread that unlocks it while another waits
/// leaves the sending to that one, so that posts of several threads go out together. A leader that
/// spins before it sleeps leaves the lane to others between two looks.
///
/// Threads: run() any; the rest the session's background thread.
class LaneDriver final : public HangUpHandler {
 public:
  /// `unresolved`, `opens`: see ClientLane; `spin`: see ClientOptions.
  LaneDriver(std::uint16_t first_slot, std::uint16_t slots, Unresolved* unresolved,
             Unresolved* opens, Duration spin, LaneDriverOwner& owner);
  LaneDriver(const LaneDriver&) = delete;
  LaneDriver& operator=(const LaneDriver&) = delete;

  /// Runs the operation to its end. EINTR: interrupted and cancelled.
  int run(Operation& operation, const Interrupt& interrupt);

  /// A path is up: `attach` gives the lane its link.
  void attach(PathLife life, std::unique_ptr<Connection> connection,
              const std::function<void(ClientLane&, QueuePair&)>& attach);
  /// A path is gone: closes its connection.
  void detach(unsigned path);
  /// Traffic counts of the path's connection, see Connection; "" when there is none.
  std::string statistics(unsigned path);
  /// Runs the function on the connection of each path, while the lane is held.
  void with_connections(const std::function<void(Connection&)>& function);
  /// Runs the function on the lane, while it is held.
  void with_lane(const std::function<void(ClientLane&)>& function);
  /// Receives what comes to a lane that nobody drives, or whose event loop is elsewhere. Where
  /// nothing is due, nothing comes.
  void service() { receive_for_absent(); }
  /// The peer has closed a connection of the lane.
  void on_hang_up() override;
  /// True when something arrived on the path since the last call.
  bool heard(unsigned path);
  /// A change waits for one that was given up, see ClientLane.
  bool holds_back_owner();
  /// At each heartbeat interval. False: the path's connection is dead, see ClientLane::probe().
  bool probe(unsigned path, unsigned misses_max);
  unsigned silence(unsigned path);  ///< see ClientLane
  /// Looks at the race of the lane's connections, see ClientLane::race(). A leader that sleeps is
  /// woken only if something has come for it.
  Raced look_at_race();
  /// Ends the looks if no answer is due: LaneDriverOwner::on_busy() tells when they must go on.
  /// False: they must.
  bool end_looks();
  /// See ClientLane. None: nothing has failed.
  std::optional<PathMask> fail_overdue(Instant limit, int error);
  /// Ends everything with `error` and closes all connections.
  void shut_down(int error);
  /// Makes an event loop the leader until it is destroyed.
  std::unique_ptr<LaneLoop> open_loop();

 private:
  struct Waiter;
  struct Path;
  class Loop;

  /// Held by the thread that works on the lane; see std::mutex.
  class Mutex {
   public:
    explicit Mutex(LaneDriver& driver) : driver_{driver} {}
    void lock();
    bool try_lock() { return mutex_.try_lock(); }
    void unlock();
    bool wanted() const { return waiting_ != 0; }
    /// Gives it to one of the waiting threads.
    void let_others_in();

   private:
    LaneDriver& driver_;
    std::mutex mutex_;
    std::atomic<unsigned> waiting_{0};  ///< threads that found it held
    std::atomic<unsigned> let_in_{0};   ///< how often one of them got it
  };
  using Lock = std::unique_lock<Mutex>;

  enum class Leader : std::uint8_t {
    nobody,
    thread,  ///< one that waits in run()
    loop,    ///< an event loop leads, or is about to
  };

  bool led() const { return leader_ != Leader::nobody; }
  bool looping() const { return leader_ == Leader::loop; }
  void lead(Lock& lock, Waiter& self, const Interrupt& interrupt);
  void follow(Lock& lock, Waiter& self, const Interrupt& interrupt);
  void receive_as_leader(Lock& lock, const Operation& operation);
  void sleep_as_leader(Lock& lock);
  bool await_as_leader(Lock& lock, OneCall* call);
  bool spin_as_leader();
  std::uint64_t received() const;
  Lock take_quiet();
  bool receive_for_absent();
  void send();
  void hand_over();
  bool wants_to_write() const;
  void drive();
  void drive(unsigned path);
  bool receive_in_time(PathMask quiet);
  void tell_if_busy() {
    if (std::exchange(unwatched_, false)) owner_.on_busy();
  }
  short events_of(const Path& path) const;
  void link(Waiter& waiter);
  void unlink(Waiter& waiter);
  void kick();

  struct Path {
    std::unique_ptr<Connection> connection;
    unsigned generation = 0;
    bool broken = false;
    std::atomic<std::uint64_t> arrivals{0};
    std::uint64_t arrivals_seen = 0;
  };

  Mutex mutex_{*this};
  bool posted_ = false;  ///< something that nobody has sent yet
  ClientLane lane_;
  LaneDriverOwner& owner_;
  SpinScore spin_;
  std::array<Path, kMaxPaths> paths_;
  unsigned path_limit_ = 0;  ///< no path from here on was ever attached
  Leader leader_ = Leader::nobody;
  bool unwatched_ = false;  ///< nobody looks at the race, and somebody must if requests come
  unsigned hang_ups_ = 0;   ///< ends of connections that perhaps nobody has read yet
  PathMask silent_ = 0;     ///< at the last look
  PathMask more_ = 0;       ///< paths with arrivals, perhaps, without an event of the descriptors
  Waiter* followers_head_ = nullptr;
  Waiter* followers_tail_ = nullptr;
  bool awaiting_ = false;  ///< the leader is in a connection's await(), and does not hold the lane
  unsigned want_quiet_ = 0;  ///< threads that wait for the opposite
  std::condition_variable_any quiet_;
  WakeUp kick_;  ///< of the leader, for events beside those of its descriptors
};

}  // namespace rtrs
