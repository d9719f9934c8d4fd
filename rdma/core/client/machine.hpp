// SPDX-License-Identifier: BSD-3-Clause
// The decisions about a session's paths. Events and the time go in, actions come out; an executor
// performs them with sockets and threads, or in the simulator.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>

#include "rdma/core/client/notice.hpp"
#include "rdma/core/client/session.hpp"

namespace rtrs {

/// An event that the executor reports.
struct ClientEvent {
  enum class Kind : std::uint8_t {
    awake,        ///< at a heartbeat, before its lanes are looked at
    heartbeat,    ///< of `path`; `lanes_live`
    ready,        ///< `path` has exchanged the infos
    lost,         ///< `path`, by `cause`; `traffic`
    access,       ///< the server has changed the access state of `path`
    overdue,      ///< requests have failed; `paths` had some of them in flight and are mute
    released,     ///< no lane is bound to `path`
    no_permit,    ///< none is left to recover the session with over `path`
    recovered,    ///< devices were opened again, with `cause.error`
    busy,         ///< the executor was, until now: that is no local stall
    disconnect,   ///< command: `path`
    remove,       ///< command: `path`
    new_policy,   ///< command
    came_or_goes  ///< command: a path was added, or stays, or is to be connected again
  };
  /// Of a path, by all its lanes since it was attached.
  struct Traffic {
    bool answered = false;
    bool unanswered = false;
    unsigned silence = 0;  ///< intervals; of the lane that is silent for longest
  };

  Kind kind;
  unsigned path = 0;
  unsigned life = 0;  ///< of the path, as the action to connect it had it
  Cause cause = {};
  Traffic traffic = {};
  PathMask paths = 0;
  bool lanes_live = true;
};

/// An action that the executor performs.
struct ClientAction {
  enum class Kind : std::uint8_t {
    connect,         ///< `path`: ClientSession::path() says how; its attempt has the number `life`
    make_lanes,      ///< for the permits that `path` was granted
    attach,          ///< the lanes to `path`, which is connected
    came_up,         ///< callers may submit requests
    use,             ///< `paths` for new requests
    allow,           ///< ask ClientPath::accessible() of `path` for new requests
    acknowledge,     ///< the access state of `path` to its server: all lanes go by it
    drop,            ///< gather the traffic of `path` in its `life`, and report it as lost
    close,           ///< the connections of `path` that no lane has
    detach,          ///< the lanes from `path`; report busy
    attempt_failed,  ///< of `path`, by `cause`, before the session was up
    recover,         ///< open the devices again over `path`; report recovered, or no_permit
    break_recovery,  ///< its path is lost: let it end
    renew,           ///< the lanes, for another session
    say_goodbye,     ///< to the server of `path`, which then closes it
    put_off,         ///< waits in the lanes, by `pause`
    fail_waiting,    ///< requests that wait for a path
    fail_writes,     ///< those that only `path` may carry
    fail_overdue,    ///< requests without progress on their paths; report overdue
    release,         ///< if no lane is bound to `path`, report released
    forget,          ///< `path`: the next one with its number is another
    run_background_jobs,  ///< a path has come
    notify,               ///< `notice`
    end,                  ///< the session, by `cause`
  };

  Kind kind;
  unsigned path = 0;
  unsigned life = 0;
  PathMask paths = 0;
  Duration pause{};
  Cause cause = {};
  Notice notice = {};
};

/// Decides about a session's paths, and about the session with them. Lanes, connections, timers and
/// the recovery handler belong to the executor.
///
/// After each event the executor performs the actions until there are none, and then calls
/// handle_timeout() at next_deadline(). It may report events while it performs an action; their
/// actions come before the older ones.
///
/// Threads: one at a time (the driver's background thread; the simulator).
class ClientMachine {
 public:
  /// `recovers`: the executor can open devices again when the server has forgotten the session.
  ClientMachine(ClientSessionOptions options, std::function<std::uint64_t()> random, bool recovers)
      : session_{std::move(options), std::move(random)}, recovers_{recovers} {}

  void handle(const ClientEvent& event, Instant now);
  /// Does everything that is due by now.
  void handle_timeout(Instant now);
  std::optional<ClientAction> poll_action();
  /// May change with each event.
  Instant next_deadline() const { return ended_ ? Instant::max() : session_.next_event(); }
  /// The executor stops: nothing is decided any more.
  void end() { ended_ = true; }

  /// For questions, and for commands that change no path that is open.
  ClientSession& session() { return session_; }
  const ClientSession& session() const { return session_; }
  PathMask in_use() const { return in_use_; }
  unsigned life(unsigned path) const { return paths_[path].life; }

 private:
  struct Path {
    unsigned life = 0;
    bool open = false;
    bool held = false;     ///< ready, but waits until the session has been recovered
    bool noticed = false;  ///< its access state is yet to be acknowledged
  };
  struct Recovery {
    unsigned path = 0;
    bool broken = false;
  };

  void connect(unsigned path);
  void ready(unsigned path, Instant now);
  void join(unsigned path, Instant now);
  void recover(unsigned path);
  void recovered(int error, Instant now);
  void retry_held(Instant now);
  void lose(unsigned path, const Cause& cause, const ClientEvent::Traffic& traffic, Instant now);
  void report_end(unsigned path, bool was_connected, const Cause& cause);
  void heartbeat(unsigned path, bool lanes_live, Instant now);
  void change_access(unsigned path, Instant now);
  void give_up_mute(PathMask paths, Instant now);
  void disconnect(unsigned path, Instant now);
  void remove(unsigned path, Instant now);
  void released(unsigned path);
  void check_leaving(unsigned path);
  void apply_use(Instant now);
  void note_pause(Instant now);
  void end(const Cause& cause);
  void drop(unsigned path, const Cause& cause);
  void notify(const Notice& notice);
  void act(ClientAction::Kind kind, unsigned path = 0);
  void add(ClientAction action);

  ClientSession session_;
  const bool recovers_;
  std::array<Path, kMaxPaths> paths_;
  std::optional<Recovery> recovery_;
  PathMask in_use_ = 0;
  bool ended_ = false;
  std::deque<ClientAction> actions_;
  std::ptrdiff_t added_ = 0;  ///< actions since one was taken: they come first
};

}  // namespace rtrs
