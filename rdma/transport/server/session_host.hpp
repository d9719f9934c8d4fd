// SPDX-License-Identifier: BSD-3-Clause
// One session of a server in operation: its paths on its reactor.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "rdma/core/server/machine.hpp"
#include "rdma/server.hpp"
#include "rdma/transport/alarm.hpp"
#include "rdma/transport/server/path_host.hpp"

namespace rtrs {

/// A connection that was accepted, and where it belongs.
struct Arrival {
  Admission::PathId path = 0;
  bool new_path = false;
  std::uint16_t cid = 0;
  ServerPathOptions options;
};

/// Threads: its reactor, except the constructor.
class SessionHost final : public ServerExecutor, public PathHostOwner {
 public:
  using PathId = Admission::PathId;

  SessionHost(SessionEnvironment& server, Admission::SessionId number, Reactor& reactor,
              const ServerSessionOptions& options, ServerMachineOptions times,
              ServerHandler& handler, const Incoming& first);
  ~SessionHost();
  SessionHost(const SessionHost&) = delete;
  SessionHost& operator=(const SessionHost&) = delete;

  Reactor& reactor() { return reactor_; }

  void add(const Arrival& arrival, std::unique_ptr<Incoming> incoming);
  /// A path that is half open makes room for another one.
  void turn_away(PathId path) { report({.kind = ServerEvent::Kind::make_room, .path = path}); }
  /// A path of several goes for the sake of another client.
  void spare(PathId path) {
    report({.kind = ServerEvent::Kind::end_path,
            .path = path,
            .end = {.kind = PathEnd::Kind::spared}});
  }
  /// A path is gone.
  void forget(PathId path);
  /// No more requests are read; ends as soon as everything is answered.
  void drain() { report({.kind = ServerEvent::Kind::drain}); }
  void close(const std::string& why);
  /// Closes the path of this address, if it is one of this session's.
  void close_path(const std::string& peer, const std::string& why);
  /// Sets the access of the paths that came in by a listener.
  void set_access(unsigned entrance, wire::PathAccess access) {
    session().set_access(entrance, access);
  }
  /// True: the session is that of the client `uuid`, and of this user.
  bool is(const wire::Uuid& uuid, const std::string& user) const {
    return machine_.session().options().uuid == uuid && machine_.session().identity.name == user;
  }
  ServerSessionStatus status();
  const Repeats& repeats() const { return machine_.session().repeats(); }
  /// Another session may have its resources.
  void end_if_idle() { session().end_if_idle(); }

 private:
  // The decisions about it
  Admission::Admitted admit(PathId path, std::string_view name) override;
  void let_others_go() override;
  void lingers() override;
  void forgotten() override;
  void idle() override { server_.on_idle(number_); }
  void gone() override;

  // For its paths
  void report(const ServerEvent& event) override;
  void log_of_path(LogLevel level, const std::string& line) override;

  ServerSession& session() { return machine_.session(); }
  void set_alarm();
  void give_up(PathId path);
  void add_path(const Arrival& arrival, const std::string& peer);
  void log(LogLevel level, const char* event, const std::string& text) const;

  SessionEnvironment& server_;
  const Admission::SessionId number_;
  Reactor& reactor_;
  ServerMachine machine_;
  std::map<PathId, std::unique_ptr<PathHost>> paths_;
  Alarm alarm_;
  Instant alarm_at_ = Instant::max();
  bool in_vain_ = false;  ///< the client came and left with nothing open
};

}  // namespace rtrs
