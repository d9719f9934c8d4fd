// SPDX-License-Identifier: BSD-3-Clause
// One path of a session of the simulated server in operation: does for ServerPath what
// rdma/transport/path_host.hpp does with sockets.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rdma/core/server_path.hpp"
#include "tests/sim/heartbeat_watch.hpp"
#include "tests/sim/sim_queue_pair.hpp"

namespace sim {

/// The session's parts that a path needs.
struct PathEnvironment {
  World& world;
  const Knobs& knobs;
  NodeId server = 0;
  NodeId client = 0;
  std::uint64_t serial = 0;  ///< of the client's session
  std::function<rtrs::PathRefusal(std::string_view name)> admit;
  std::function<void()> on_connected;
  std::function<bool()> have_memory;
  /// Not null: all paths of the session have their chunks here, as Linux's server does it.
  std::vector<std::byte>* shared_chunks = nullptr;
  OpenChunks& open_chunks;
  std::function<void()> on_closing;
  std::function<void()> on_pending;  ///< see ServerSession::has_pending()
  std::function<void(std::uint64_t held)> on_shrunk;
  std::function<void()> on_gone;  ///< the host may be destroyed from a later event
};

class ServerPathHost {
 public:
  ServerPathHost(PathEnvironment environment, rtrs::ServerSession& session,
                 rtrs::ServerPathOptions options);
  ServerPathHost(const ServerPathHost&) = delete;
  ServerPathHost& operator=(const ServerPathHost&) = delete;

  /// Takes a connection whose connect request was accepted.
  void add(const rtrs::wire::ConnectParameters& request, std::shared_ptr<Wire> wire);
  /// The identity that its client has proven, if it had to.
  std::optional<std::string_view> user() const;
  /// Looks at all connections. False: there may be more.
  bool read();
  /// Closes as soon as everything is answered and the replies are out.
  void drain();
  void close(const char* why);
  bool silenced() const;
  bool half_open() const { return path_.state() == rtrs::ServerPathState::connecting; }
  bool connected() const { return path_.state() == rtrs::ServerPathState::connected; }

 private:
  struct Link {
    std::shared_ptr<Wire> wire;
    std::unique_ptr<SimQueuePair> queue_pair;
    rtrs::QueuePairHandler* handler = nullptr;
    bool progress_due = false;
    bool flush_due = false;
  };

  void schedule_progress(Link& link);
  bool progress(Link& link);
  void schedule_flush(Link& link);
  void schedule_tick();
  void on_complaint(rtrs::Complaint complaint);
  bool has_impostors() const;
  void check_users();
  void on_fenced(const char* why, bool fault);
  void check_drained();
  bool provide_chunks();
  void give_back(std::span<const rtrs::MutableBytes> unused, std::uint64_t held) const;
  std::string who() const { return "server, session " + std::to_string(environment_.serial); }

  PathEnvironment environment_;
  World& world_;
  Scope scope_;
  KeySource keys_;
  std::optional<LinuxServer> linux_server_;
  std::optional<ChunkKeys> chunk_keys_;
  rtrs::ServerSession& session_;
  rtrs::ServerPath path_;
  std::vector<std::byte> chunks_;
  std::vector<std::unique_ptr<Link>> links_;
  std::optional<HeartbeatWatch> watch_;
  const char* fenced_ = nullptr;  ///< while a connection made progress
  bool in_progress_ = false;
  bool refused_ = false;  ///< a complaint is in order
  bool started_ = false;
  bool draining_ = false;
  bool closed_ = false;
};

}  // namespace sim
