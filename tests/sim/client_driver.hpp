// One session of a simulated client: does for ClientPath and its lanes what
// rdma/transport/client_driver.hpp does with sockets and threads.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/core/client_path.hpp"
#include "tests/sim/heartbeat_watch.hpp"
#include "tests/sim/network.hpp"
#include "tests/sim/sim_queue_pair.hpp"

namespace sim {

class ClientDriver {
 public:
  struct Setup {
    const Knobs& knobs;
    const ClientKnobs& client;
    NodeId node = 0;
    NodeId server = 0;
    std::string session_name;
  };
  /// Index of a lane; 0 is the control lane.
  using LaneIndex = std::size_t;

  ClientDriver(World& world, Network& network, const Setup& setup);
  ClientDriver(const ClientDriver&) = delete;
  ClientDriver& operator=(const ClientDriver&) = delete;

  std::function<void()> on_up;
  /// The session is over; everything that was submitted has ended. The driver may be destroyed
  /// from a later event.
  std::function<void()> on_down;

  void start();
  void shut_down() { fail("shut down"); }
  /// Requests can be submitted, although nobody may answer any more.
  bool up() const { return up_ && !closed_; }
  std::uint64_t serial() const { return serial_; }
  rtrs::SessionLimits limits() const;

  /// Where messages that are no I/O go.
  LaneIndex control_lane() const { return lanes_[0]->slot_count() > 0 ? 0 : 1; }
  LaneIndex lanes() const { return lanes_.size(); }
  rtrs::ClientLane& lane(LaneIndex i) { return *lanes_[i]; }
  /// Starts an operation whose end is waited for; end_wait() when it has come.
  void start(rtrs::Operation& operation, LaneIndex i);
  void cancel(rtrs::Operation& operation, LaneIndex i);
  void end_wait(LaneIndex i) { --links_[i].waiters; }
  unsigned permits_in_use() const;

 private:
  struct Link {
    std::shared_ptr<Wire> wire;
    std::unique_ptr<SimQueuePair> queue_pair;
    unsigned waiters = 0;
    bool progress_due = false;
  };

  void connect_next();
  void answered(std::uint16_t cid, rtrs::ConstBytes record);
  void schedule_progress(std::size_t cid);
  void progress(std::size_t cid);
  void go_up();
  void schedule_tick();
  void tick();
  void fail(const char* why);
  void close();
  bool silenced() const;
  std::string who() const { return "client, session " + std::to_string(serial_); }

  World& world_;
  Network& network_;
  Setup setup_;
  std::uint64_t serial_;
  Scope scope_;
  KeySource keys_;
  rtrs::ClientPath path_;
  std::vector<Link> links_;
  std::vector<std::unique_ptr<rtrs::ClientLane>> lanes_;
  std::vector<std::uint64_t> seen_;  ///< arrivals per lane at the last tick
  std::optional<HeartbeatWatch> watch_;
  bool up_ = false;
  bool failing_ = false;
  bool closed_ = false;
};

}  // namespace sim
