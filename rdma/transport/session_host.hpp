// SPDX-License-Identifier: BSD-3-Clause
// One session of a server in operation: its paths on its reactor, and how long it waits for them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "rdma/core/admission.hpp"
#include "rdma/core/server_session.hpp"
#include "rdma/server.hpp"
#include "rdma/transport/alarm.hpp"
#include "rdma/transport/path_host.hpp"

namespace rtrs {

/// The server's functions and settings for a session.
struct SessionEnvironment {
  using PathId = Admission::PathId;

  /// `user`: proven by the path, if it had to.
  std::function<Admission::Admitted(PathId, std::string_view name,
                                    std::optional<std::string_view> user)>
      admit;
  /// Why a user who has proven to be one is none any more; "" = it still is.
  std::function<std::string(const Identity&)> withdrawn;
  std::function<void(PathId, bool over)> on_path_closing;  ///< over: and the session is over
  std::function<void(PathId, std::uint64_t held)> on_path_shrunk;  ///< see ServerPathHooks
  std::function<void(PathId)> on_path_gone;  ///< answer with forget(), from a later event
  std::function<void()> on_idle;             ///< it lingers, and nothing executes
  std::function<void()> on_gone;  ///< nothing is left; the host may be destroyed from a later event
  std::function<void()> on_connection_closed;  ///< once per connection
  /// At the entrance of this number; its address is to be added.
  std::function<void(AuthRefusal, unsigned entrance)> on_auth_refused;
  Log log;
  Duration handshake_timeout{};
  Duration linger{};
};

/// A connection that was accepted, and where it belongs.
struct Arrival {
  Admission::PathId path = 0;
  bool new_path = false;
  std::uint16_t cid = 0;
  ServerPathOptions options;
};

/// Threads: its reactor, except the constructor.
class SessionHost {
 public:
  SessionHost(Reactor& reactor, ServerSessionOptions options, ServerHandler& handler,
              std::string peer, Identity identity, SessionEnvironment environment);
  ~SessionHost();
  SessionHost(const SessionHost&) = delete;
  SessionHost& operator=(const SessionHost&) = delete;

  Reactor& reactor() { return reactor_; }

  void add(const Arrival& arrival, std::unique_ptr<Incoming> incoming);
  /// A path that is half open makes room for another one.
  void turn_away(Admission::PathId path);
  /// A path is gone.
  void forget(Admission::PathId path) { paths_.erase(path); }
  /// No more requests are read; ends as soon as everything is answered.
  void drain();
  void close(const std::string& why, LogLevel level);
  /// That of this address, if it is one of this session's.
  void close_path(const std::string& peer, const std::string& why);
  /// Sets the access of the paths that came in by a listener.
  void set_access(unsigned entrance, wire::PathAccess access) {
    session_.set_access(entrance, access);
  }
  /// Of one user only.
  bool is(const wire::Uuid& uuid, const std::string& user) const {
    return session_.options().uuid == uuid && session_.identity.name == user;
  }
  ServerSessionStatus status();
  const Repeats& repeats() const { return session_.repeats(); }
  /// Another session may have its resources.
  void end_if_idle() { session_.end_if_idle(); }

 private:
  PathRefusal admit(Admission::PathId path, std::string_view name);
  void close_older_life();
  PathHost& add_path(const Arrival& arrival, const std::string& peer);
  void read_and_judge();
  void judge_later();
  void on_lingering();
  void on_gone();
  void log(LogLevel level, const std::string& text) const;
  void pass_on(LogLevel level, const std::string& line);

  Reactor& reactor_;
  SessionEnvironment environment_;
  ServerSession session_;
  std::map<Admission::PathId, std::unique_ptr<PathHost>> paths_;
  Admission::PathId older_life_ = 0;  ///< of the path that is admitted at the moment
  Alarm linger_timer_;
  bool judging_later_ = false;
  bool lingering_ = false;
  bool draining_ = false;
  bool in_vain_ = false;  ///< the client came and left with nothing open
};

}  // namespace rtrs
