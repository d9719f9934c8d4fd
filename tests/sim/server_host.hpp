// SPDX-License-Identifier: BSD-3-Clause
// One session of the simulated server in operation: performs what ServerMachine decides, as
// rdma/transport/server/session_host.hpp does with sockets.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "rdma/core/admission.hpp"
#include "rdma/core/server/machine.hpp"
#include "tests/sim/server_path_host.hpp"

namespace sim {

/// The server's parts that a session needs.
struct HostEnvironment {
  using PathId = rtrs::Admission::PathId;

  World& world;
  const Knobs& knobs;
  NodeId server = 0;
  NodeId client = 0;
  /// `user`: what the path has proven, if it had to.
  std::function<rtrs::Admission::Admitted(PathId, std::string_view name,
                                          std::optional<std::string_view> user)>
      admit;
  std::function<bool(PathId)> is_turned_away;
  std::function<bool()> have_memory;
  OpenChunks& open_chunks;
  std::function<void(PathId, bool over)> on_path_closing;
  std::function<void(PathId, std::uint64_t held)> on_path_shrunk;
  std::function<void(PathId, bool silent)> on_path_silent;
  std::function<void()> check_loans;
  std::function<void(PathId)> on_path_gone;  ///< answer with forget(), from a later event
  std::function<void()> on_idle;
  std::function<void()> on_gone;  ///< the host may be destroyed from a later event
};

class ServerHost final : public rtrs::ServerExecutor {
 public:
  using PathId = rtrs::Admission::PathId;

  ServerHost(HostEnvironment environment, const rtrs::ServerSessionOptions& options,
             rtrs::ServerHandler& handler, std::uint64_t serial);
  ServerHost(const ServerHost&) = delete;
  ServerHost& operator=(const ServerHost&) = delete;

  /// Takes a connection whose connect request was accepted.
  void add(const rtrs::Admission::Considered& considered,
           const rtrs::wire::ConnectParameters& request, const rtrs::ServerPathOptions& options,
           std::shared_ptr<Wire> wire);
  void set_access(unsigned listener, rtrs::wire::PathAccess access) {
    machine_.session().set_access(listener, access);
  }
  /// The number of paths over which requests may come, without those of this uuid.
  std::size_t carrying(const rtrs::wire::Uuid& without = {}) const;
  bool carries_beside(PathId path) const {
    return carrying(machine_.find(path)->core.options().uuid) > 0;
  }
  /// True: there is another path, whether requests may come over it or not.
  bool serves(const rtrs::wire::Uuid& without) const;
  bool serves_beside(PathId path) const { return serves(machine_.find(path)->core.options().uuid); }
  bool may_carry(PathId path) const;
  /// It has proven a name.
  bool has_user() const { return !machine_.session().identity.name.empty(); }
  const rtrs::ServerSessionOptions& options() const { return machine_.session().options(); }
  void spare(PathId path) {
    report({.kind = rtrs::ServerEvent::Kind::end_path,
            .path = path,
            .end = {.kind = rtrs::PathEnd::Kind::spared}});
  }
  /// A path that is half open makes room for another one.
  void turn_away(PathId path);
  void forget(PathId path);
  /// Ends as soon as everything is answered and the replies are out.
  void drain();
  void close(const char* why);
  void end_if_idle() { machine_.session().end_if_idle(); }
  /// Bytes that are lent to its paths.
  std::uint64_t lent() const;
  void check_loans();

 private:
  rtrs::Admission::Admitted admit(PathId path, std::string_view name) override;
  void let_others_go() override;
  void lingers() override { world_.note("server", serial_, "session lingers"); }
  void forgotten() override {}
  void idle() override { environment_.on_idle(); }
  void gone() override { environment_.on_gone(); }

  void report(const rtrs::ServerEvent& event);
  void set_timer();
  ServerPathHost& add_path(PathId path, const rtrs::ServerPathOptions& options);

  HostEnvironment environment_;
  World& world_;
  std::uint64_t serial_;
  Scope scope_;
  rtrs::ServerMachine machine_;
  std::map<PathId, std::unique_ptr<ServerPathHost>> paths_;
  std::optional<Scope> timer_;
  Instant timer_at_ = Instant::max();
  std::vector<std::byte> shared_chunks_;  ///< of a server in Linux's style
};

}  // namespace sim
