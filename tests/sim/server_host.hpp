// One session of the simulated server in operation: does for ServerSession what
// rdma/transport/session_host.hpp does with sockets.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma/core/server_path.hpp"
#include "rdma/core/server_session.hpp"
#include "tests/sim/heartbeat_watch.hpp"
#include "tests/sim/sim_queue_pair.hpp"

namespace sim {

/// What a session needs of its server.
struct HostEnvironment {
  World& world;
  const Knobs& knobs;
  NodeId server = 0;
  NodeId client = 0;
  std::function<bool(std::string_view)> claim_name;
  std::function<bool()> have_memory;
  std::function<void()> on_closing;
  std::function<void()> on_gone;  ///< the host may be destroyed from a later event
};

class ServerHost {
 public:
  ServerHost(HostEnvironment environment, rtrs::ServerSessionOptions options,
             rtrs::ServerHandler& handler, std::uint16_t cid_count, std::uint64_t serial);
  ServerHost(const ServerHost&) = delete;
  ServerHost& operator=(const ServerHost&) = delete;

  /// Takes a connection whose connect request was accepted.
  void add(std::uint16_t cid, std::shared_ptr<Wire> wire);
  /// Closes as soon as nothing executes and the replies are out.
  void drain();
  void close(const char* why);
  std::uint64_t serial() const { return serial_; }
  const std::string& name() const { return session_.name; }
  bool silenced() const;

 private:
  struct Link {
    std::shared_ptr<Wire> wire;
    std::unique_ptr<SimQueuePair> queue_pair;
    rtrs::QueuePairHandler* handler = nullptr;
    bool progress_due = false;
    bool flush_due = false;
  };

  void schedule_progress(Link& link);
  void progress(Link& link);
  void schedule_flush(Link& link);
  void schedule_tick();
  void on_complaint(rtrs::Complaint complaint);
  void check_drained();
  bool provide_chunks();
  std::string who() const { return "server, session " + std::to_string(serial_); }

  HostEnvironment environment_;
  World& world_;
  std::uint64_t serial_;
  Scope scope_;
  KeySource keys_;
  std::optional<LinuxServer> linux_server_;
  rtrs::ServerSession session_;
  std::vector<std::byte> chunks_;
  std::vector<std::unique_ptr<Link>> links_;
  std::optional<HeartbeatWatch> watch_;
  bool refused_ = false;  ///< a complaint is in order
  bool started_ = false;
  bool draining_ = false;
  bool closed_ = false;
};

}  // namespace sim
