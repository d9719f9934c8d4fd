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
    awake,        ///< a heartbeat is due; reported before the lanes are looked at
    heartbeat,    ///< is due on `path`; `lanes_live`
    ready,        ///< `path` has exchanged the infos
    lost,         ///< `path` has ended, by `cause`; `traffic`
    access,       ///< the server has changed the access state of `path`
    raced,        ///< the lanes' races have found silent paths or moved requests: `raced`
    overdue,      ///< requests were overdue and failed; `paths` had some of them and are mute
    released,     ///< no lane is bound to `path`
    no_permit,    ///< no permit is left for the recovery of the session over `path`
    recovered,    ///< the opening of the devices has ended, with the errno `cause.error`
    busy,         ///< the executor was busy until now, which is no local stall
    disconnect,   ///< command: `path`
    remove,       ///< command: `path`
    new_policy,   ///< command: the executor uses another PathPolicy from now on
    came_or_goes  ///< command: a path was added, stays after all, or is to be connected again
  };
  /// The traffic of a path on all lanes, since it was attached.
  struct Traffic {
    bool answered = false;    ///< some request was
    bool unanswered = false;  ///< some request is
    unsigned silence = 0;     ///< heartbeat intervals; of the lane that is silent for longest
  };

  Kind kind;
  unsigned path = 0;
  unsigned generation = 0;  ///< of the path: the number in the action that connected it
  Cause cause = {};
  Traffic traffic = {};
  PathMask paths = 0;
  Raced raced = {};
  bool lanes_live = true;  ///< no lane has found its connection dead
};

/// An action that the executor performs.
struct ClientAction {
  enum class Kind : std::uint8_t {
    connect,      ///< try to connect `path` in this `generation`, by ClientSession::path()
    make_lanes,   ///< for the permits that `path` was granted
    attach,       ///< attach the lanes to `path`, which is connected
    came_up,      ///< let callers submit requests
    use,          ///< let new requests use `paths`
    allow,        ///< tell the lanes whether `path` is accessible (ClientPath::accessible())
    acknowledge,  ///< the access state of `path`, to its server: all lanes follow it
    drop,         ///< gather the traffic of `path` in its `generation`, and report the path as lost
    close,        ///< close the connections of `path` that no lane has
    detach,       ///< detach the lanes from `path`; report busy
    attempt_failed,       ///< before the session was up, `path` could not be connected, by `cause`
    recover,              ///< open the devices again over `path`; report recovered, or no_permit
    break_recovery,       ///< let the recovery end: its path is lost
    renew,                ///< prepare the lanes for another session (ClientLane::renew())
    say_goodbye,          ///< to the server of `path`, which then closes the path
    put_off,              ///< leave `pause` out of all waits in the lanes
    fail_waiting,         ///< end the requests that wait for a path
    fail_writes,          ///< end the writes that only `path` may carry
    fail_overdue,         ///< end requests without progress on their paths; report overdue
    release,              ///< if no lane is bound to `path`, report released
    forget,               ///< forget `path` in the lanes: its number may go to another path
    run_background_jobs,  ///< a path has come
    notify,               ///< report `notice` to the log
    end,                  ///< end the session, by `cause`
  };

  Kind kind;
  unsigned path = 0;
  unsigned generation = 0;
  PathMask paths = 0;
  Duration pause{};
  Cause cause = {};
  Notice notice = {};
};

/// Decides about a session and its paths. Lanes, connections, timers and the recovery handler
/// belong to the executor.
///
/// After each event the executor performs all actions of poll_action(), and then calls
/// handle_timeout() at next_deadline(). It may report events while it performs an action; the
/// actions of these events come before the older ones.
///
/// Threads: one at a time (the driver's background thread; the simulator).
class ClientMachine {
 public:
  /// `recovers`: the executor can open devices again when the server has forgotten the session.
  ClientMachine(ClientSessionOptions options, std::function<std::uint64_t()> random, bool recovers)
      : session_{std::move(options), std::move(random)}, recovers_{recovers} {}

  void handle(const ClientEvent& event, Instant now);
  /// Decides all that is due by now.
  void handle_timeout(Instant now);
  /// Takes the next action. None: there is none until the next event or deadline.
  std::optional<ClientAction> poll_action();
  /// May change with each event.
  Instant next_deadline() const { return ended_ ? Instant::max() : session_.next_event(); }
  /// The executor stops: later events lead to nothing.
  void end() { ended_ = true; }

  /// For questions, and for commands that change no path that is open.
  ClientSession& session() { return session_; }
  const ClientSession& session() const { return session_; }
  PathMask in_use() const { return in_use_; }
  unsigned generation(unsigned path) const { return paths_[path].generation; }

 private:
  struct Path {
    unsigned generation = 0;
    bool open = false;
    bool held = false;     ///< ready, but waits for the end of the recovery
    bool noticed = false;  ///< its new access state is not acknowledged yet
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
  void raced(const Raced& raced, Instant now);
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
  std::ptrdiff_t added_ = 0;  ///< actions added since one was taken; they come first
};

}  // namespace rtrs
