// SPDX-License-Identifier: BSD-3-Clause
// The decisions about a session's paths at the server: which connections are let in, when paths are
// read, when they end. Events and the time go in, actions come out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "rdma/core/admission.hpp"
#include "rdma/core/server/path.hpp"

namespace rtrs {

/// Why a path ends.
struct PathEnd {
  enum class Kind : std::uint8_t {
    makes_room,   ///< others came while it had not finished its handshake
    replaced,     ///< its client has connected it again
    late,         ///< its handshake was not finished in time
    silent,       ///< its client does not answer heartbeats
    fenced,       ///< its session has closed it, because of `why`
    broke_rule,   ///< likewise; its client broke a rule
    turned_down,  ///< its client was told to leave, because of `why`
    unproven,     ///< connection `cid` did not prove its user, see `why`
    drained,      ///< the server stops, and all answers have left
    left,         ///< its client has closed it; `text`
    broken,       ///< a connection has failed; `text`
    failed,       ///< the executor has; `text`
    command,      ///< `text`
  };

  Kind kind{};
  Complaint why = nullptr;
  std::uint16_t cid = 0;
  std::string text{};
  bool answered = false;  ///< all answers have left: its client is to have them
};

/// An event that the executor reports.
struct ServerEvent {
  enum class Kind : std::uint8_t {
    serving,      ///< `path` serves, and that was told
    ended,        ///< a connection of `path` did, by `end`: left or broken
    flushed,      ///< all answers of `path` have left
    released,     ///< the connections of `path` are closed
    others_went,  ///< it is this session's turn again
    make_room,    ///< command: `path`, which is half open, ends
    end_path,     ///< command: `path`, by `end`
    end_all,      ///< command: all paths and the session, by `end`
    drain         ///< command: nothing is read any more; paths end when all is answered
  };

  Kind kind;
  Admission::PathId path = 0;
  PathEnd end = {};
};

/// Performs the decisions about one path, at once. It may report events meanwhile.
class ServerPathExecutor {
 public:
  /// Looks at all connections. False: there may be more.
  virtual bool read() = 0;
  /// It serves from now on. Report serving.
  virtual void serves() = 0;
  /// It takes no more connections; `over`: nor does its session.
  virtual void leaves(const PathEnd& end, bool over) = 0;
  /// Close all connections. Report released.
  virtual void close() = 0;
  /// Look at all connections: some event may have been missed.
  virtual void look() = 0;
  /// Report flushed when all answers have left.
  virtual void send_rest() = 0;
  /// Nothing executes in its chunks. Answer with forget(), from a later event.
  virtual void gone() = 0;

 protected:
  ~ServerPathExecutor() = default;
};

/// Performs the decisions about a session, likewise.
class ServerExecutor {
 public:
  /// Asks admission for a path that has finished its handshake.
  virtual Admission::Admitted admit(Admission::PathId path, std::string_view name) = 0;
  /// Report others_went when others have had a turn.
  virtual void let_others_go() = 0;
  /// No path is left, and the session waits for its client.
  virtual void lingers() = 0;
  /// Its client did not come.
  virtual void forgotten() = 0;
  /// It lingers and executes nothing: another session may have its resources.
  virtual void idle() = 0;
  /// Nothing is left: it may be destroyed from a later event.
  virtual void gone() = 0;

 protected:
  ~ServerExecutor() = default;
};

struct ServerMachineOptions {
  Duration handshake_timeout{};
  Duration linger{};  ///< how long a session without paths waits for its client
};

/// A session at the server with its paths. Connections, timers and chunk memory belong to the
/// executors.
///
/// Requests end at any time, and so do sessions and paths: actions are performed where they are
/// decided. After each event the executor calls handle_timeout() at next_deadline().
///
/// Threads: one at a time (the session's reactor; the simulator).
class ServerMachine {
 public:
  using PathId = Admission::PathId;

  /// A path, its state, and its executor.
  class Path {
   public:
    Path(PathId number, ServerSession& session, const ServerPathOptions& options)
        : id{number}, core{session, options} {}

    const PathId id;
    ServerPath core;
    ServerPathExecutor* executor = nullptr;  ///< given before anything is reported

    bool open() const { return state_ != State::closed; }

   private:
    friend class ServerMachine;
    enum class State : std::uint8_t { shaking_hands, serving, closed };

    State state_ = State::shaking_hands;
    Instant deadline_ = Instant::max();  ///< of the handshake, then the next heartbeat
    bool reading_ = false;
    std::optional<PathEnd> fence_;  ///< came while it was read
  };

  ServerMachine(const ServerSessionOptions& session, ServerMachineOptions options,
                ServerHandler& handler, ServerExecutor& executor);
  ServerMachine(const ServerMachine&) = delete;
  ServerMachine& operator=(const ServerMachine&) = delete;

  ServerSession& session() { return session_; }
  const ServerSession& session() const { return session_; }
  bool draining() const { return draining_; }

  /// Whether a connection that admission has accepted may join its path. If not, it is closed, and
  /// its client tries again.
  bool takes(PathId path, bool is_new) const;
  Path& add(PathId path, const ServerPathOptions& options, Instant now);
  const Path* find(PathId path) const;
  void forget(PathId path) { paths_.erase(path); }

  /// A connection of the path is read. Meanwhile the path is not closed.
  void begin_reading(Path& path) { path.reading_ = true; }
  /// `more`: it has more to read. False: the path is closed.
  bool end_reading(Path& path, bool more);

  void handle(const ServerEvent& event, Instant now);
  void handle_timeout(Instant now);
  /// May change with each event, and with add().
  Instant next_deadline() const;

 private:
  PathRefusal admit(Path& path, std::string_view name);
  void on_fenced(Path& path, Complaint why, bool fault);
  void end_connection(Path& path, const PathEnd& end);
  void close(Path& path, PathEnd end);
  void close_older_life();
  void read_and_judge();
  void judge_later();
  void on_lingering();
  void time_out(Path& path);
  void tick(Path& path);
  void drain();
  void end_all(const PathEnd& end);
  void handle(Path& path, const ServerEvent& event);

  const ServerMachineOptions options_;
  ServerExecutor& executor_;
  ServerSession session_;
  std::map<PathId, Path> paths_;
  PathId older_life_ = 0;  ///< of the path that is admitted at the moment
  Instant now_{};          ///< of the newest event
  /// While nobody has a path; max: it is over.
  std::optional<Instant> linger_until_;
  bool judging_later_ = false;
  bool draining_ = false;
};

}  // namespace rtrs
