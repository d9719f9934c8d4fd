// SPDX-License-Identifier: BSD-3-Clause
// One path of a session of the simulated server in operation: performs what ServerMachine decides,
// as rdma/transport/server/path_host.hpp does with sockets.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rdma/core/server/machine.hpp"
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
  std::function<void(const rtrs::ServerEvent&)> report;
  std::function<bool()> have_memory;
  /// Not null: all paths of the session have their chunks here, as Linux's server does it.
  std::vector<std::byte>* shared_chunks = nullptr;
  OpenChunks& open_chunks;
  std::function<void(bool over)> on_closing;  ///< see rtrs::ServerPathExecutor::leaves()
  std::function<void(std::uint64_t held)> on_shrunk;
  std::function<void(bool silent)> on_silent;
  std::function<void()> check_loans;
  std::function<void()> on_gone;  ///< the host may be destroyed from a later event
};

class ServerPathHost final : public rtrs::ServerPathExecutor {
 public:
  ServerPathHost(PathEnvironment environment, rtrs::ServerMachine& machine,
                 rtrs::ServerMachine::Path& place);
  ServerPathHost(const ServerPathHost&) = delete;
  ServerPathHost& operator=(const ServerPathHost&) = delete;

  /// Takes a connection whose connect request was accepted.
  void add(const rtrs::wire::ConnectParameters& request, std::shared_ptr<Wire> wire);
  /// The identity that its client has proven, if it had to.
  std::optional<std::string_view> user() const;
  /// A complaint is in order from now on.
  void refuse() { refused_ = true; }
  /// Nobody looks whether its client lives any more.
  void stop_watching() { watch_.reset(); }
  /// It gives back what is lent to it and not used, as soon as it must.
  void check_loan();

 private:
  struct Link {
    std::shared_ptr<Wire> wire;
    std::unique_ptr<SimQueuePair> queue_pair;
    rtrs::QueuePairHandler* handler = nullptr;
    bool progress_due = false;
    bool starves = false;
    bool flush_due = false;
  };

  bool read() override;
  void serves() override;
  void leaves(const rtrs::PathEnd& end, bool over) override;
  void close() override;
  void look() override {}  // no event of a simulated connection is missed
  void silence(bool silent) override { environment_.on_silent(silent); }
  void send_rest() override;
  bool provide_chunks() override;
  void give_back(std::span<const rtrs::MutableBytes> unused, std::uint64_t held) override;
  /// At once: no simulated client registers memory.
  void delay_answer(rtrs::ServerRequest& request, int error) override {
    session_.answer(request, error);
  }
  void discard(std::span<const rtrs::MutableBytes> parts) override;
  void await_memory() override;
  void wake() override;
  void gone() override { environment_.on_gone(); }

  void report(rtrs::ServerEvent::Kind kind, rtrs::PathEnd end = {}) const;
  void schedule_progress(Link& link);
  bool progress(Link& link);
  void schedule_flush(Link& link);
  void go_on();
  void show_life_later();
  bool silenced() const;
  void check_complaint(const rtrs::PathEnd& end);
  bool has_impostors() const;
  void check_users();
  std::string who() const { return "server, session " + std::to_string(environment_.serial); }

  PathEnvironment environment_;
  World& world_;
  rtrs::ServerMachine& machine_;
  rtrs::ServerMachine::Path& place_;
  rtrs::ServerPath& path_;
  rtrs::ServerSession& session_;
  Scope scope_;
  KeySource keys_;
  std::optional<LinuxServer> linux_server_;
  std::optional<ChunkKeys> chunk_keys_;
  std::vector<std::byte> chunks_;
  std::vector<std::unique_ptr<Link>> links_;
  std::optional<HeartbeatWatch> watch_;
  bool refused_ = false;  ///< a complaint is in order
  bool woken_ = false;
  bool shows_life_ = false;
  bool was_asked_ = false;             ///< for what is lent
  std::optional<Instant> owes_since_;  ///< what is lent and not used
  std::uint64_t requests_ = 0;         ///< when that was looked at last
};

}  // namespace sim
