// SPDX-License-Identifier: BSD-3-Clause
// The decisions about a session's paths at the server: which connections may join, when all paths
// are read, and when a path or the session ends. Events and the time go in, actions come out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "rdma/core/admission.hpp"
#include "rdma/core/server/path.hpp"

namespace rtrs {

/// The reason why a path ends.
struct PathEnd {
  enum class Kind : std::uint8_t {
    makes_room,   ///< half open, it had to make room for newer paths
    spared,       ///< its session can do without it, and another one needs the memory
    replaced,     ///< the client has connected it again
    late,         ///< its handshake was not finished in time
    silent,       ///< nothing comes from the client, not even answers to heartbeats
    fenced,       ///< its session has closed it, for the reason `why`
    broke_rule,   ///< likewise: the client broke the rule `why`
    turned_down,  ///< the client was told that it cannot be served, for the reason `why`
    unproven,     ///< connection `cid` did not prove its user, see `why`
    drained,      ///< the server stops, and all answers have been sent
    left,         ///< the client has closed it; `text`
    broken,       ///< a connection has failed; `text`
    failed,       ///< the executor has failed; `text`
    command,      ///< somebody ordered it; `text`
  };

  Kind kind{};
  Complaint why = nullptr;
  std::uint16_t cid = 0;
  std::string text{};
  bool answered = false;  ///< all answers have been sent, and the client is to receive them
};

/// An event that the executor reports.
struct ServerEvent {
  enum class Kind : std::uint8_t {
    serving,      ///< `path` serves, and the executor has announced it
    ended,        ///< a connection of `path` has ended, by `end`: left or broken
    flushed,      ///< all answers of `path` have been sent
    released,     ///< the connections of `path` are closed
    others_went,  ///< other sessions had their turn, see ServerExecutor::let_others_go()
    make_room,    ///< command: end `path`, which is half open
    end_path,     ///< command: end `path`, by `end`
    end_all,      ///< command: end all paths and the session, by `end`
    drain         ///< command: read nothing more; each path ends when all its requests are answered
  };

  Kind kind;
  Admission::PathId path = 0;
  PathEnd end = {};
};

/// Performs the decisions about one path, at once. It may report events before it returns.
class ServerPathExecutor {
 public:
  /// Receives on all connections. False: there may be more to receive.
  virtual bool read() = 0;
  /// The path serves from now on. Report serving.
  virtual void serves() = 0;
  /// The path ends and takes no more connections; `over`: nor does its session.
  virtual void leaves(const PathEnd& end, bool over) = 0;
  /// Closes all connections. Report released.
  virtual void close() = 0;
  /// Looks at all connections, because an event may have been missed. Called now and then.
  virtual void look() = 0;
  /// Nothing has come over the path for an interval; or something came again.
  virtual void silence(bool silent) = 0;
  /// Sends the remaining answers. Report flushed when all have been sent.
  virtual void send_rest() = 0;
  // See ServerPathOwner:
  virtual bool provide_chunks() = 0;
  virtual void give_back(std::span<const MutableBytes> unused, std::uint64_t held) = 0;
  virtual void delay_answer(ServerRequest& request, int error) = 0;
  virtual void discard(std::span<const MutableBytes> parts) = 0;
  virtual void await_memory() = 0;
  virtual void wake() = 0;
  /// Nothing executes in the path's chunks any more. Call forget() from a later event.
  virtual void gone() = 0;

 protected:
  ~ServerPathExecutor() = default;
};

/// Performs the decisions about a session, at once. It may report events before it returns.
class ServerExecutor {
 public:
  /// Asks the server's admission to let in a path that has finished its handshake.
  virtual Admission::Admitted admit(Admission::PathId path, std::string_view name) = 0;
  /// Lets other sessions of the reactor have a turn. Report others_went after that.
  virtual void let_others_go() = 0;
  /// No path is left, and the session begins to wait for its client.
  virtual void lingers() = 0;
  /// The client did not come in time.
  virtual void forgotten() = 0;
  /// The session lingers and executes nothing: another session may take its name and devices.
  virtual void idle() = 0;
  /// Nothing of the session is left. It may be destroyed from a later event.
  virtual void gone() = 0;

 protected:
  ~ServerExecutor() = default;
};

struct ServerMachineOptions {
  Duration handshake_timeout{};
  Duration linger{};  ///< how long a session without paths waits for its client
};

/// Decides about a session at the server and its paths. Connections, timers and chunk memory belong
/// to the executors.
///
/// Requests end at any time, and with them sessions and paths. So the machine calls the executors
/// as soon as it decides, and queues no actions. After each event the executor calls
/// handle_timeout() at next_deadline().
///
/// Threads: one at a time (the session's reactor; the simulator).
class ServerMachine final : public ServerSessionOwner {
 public:
  using PathId = Admission::PathId;

  /// A path, its state, and its executor.
  class Path final : public ServerPathOwner {
   public:
    Path(ServerMachine& machine, PathId number, const ServerPathOptions& options)
        : id{number}, core{machine.session_, *this, options}, machine_{machine} {}

    const PathId id;
    ServerPath core;
    ServerPathExecutor* executor = nullptr;  ///< set by its owner before the first event

    bool open() const { return state_ != State::closed; }
    bool serves() const { return state_ == State::serving; }

   private:
    friend class ServerMachine;
    enum class State : std::uint8_t { shaking_hands, serving, closed };

    // For its core
    PathRefusal admit(std::string_view name) override { return machine_.admit(*this, name); }
    bool provide_chunks() override { return executor->provide_chunks(); }
    void on_connected() override { machine_.close_older_generation(); }
    void on_fenced(Complaint why, bool fault) override { machine_.on_fenced(*this, why, fault); }
    void on_unused(std::span<const MutableBytes> unused, std::uint64_t held) override {
      executor->give_back(unused, held);
    }
    void on_spare(std::span<const MutableBytes> parts) override { executor->discard(parts); }
    void on_starved() override { executor->await_memory(); }
    void on_memory_news() override { executor->wake(); }
    void on_gone() override { executor->gone(); }
    void delay_answer(ServerRequest& request, int error) override {
      executor->delay_answer(request, error);
    }

    ServerMachine& machine_;
    State state_ = State::shaking_hands;
    Instant deadline_ = Instant::max();  ///< of the handshake, then the next heartbeat
    unsigned ticks_ = 0;                 ///< heartbeat intervals so far
    bool reading_ = false;
    std::optional<PathEnd> fence_;  ///< the session closed it while it was read
  };

  ServerMachine(const ServerSessionOptions& session, ServerMachineOptions options,
                ServerHandler& handler, ServerExecutor& executor);
  ServerMachine(const ServerMachine&) = delete;
  ServerMachine& operator=(const ServerMachine&) = delete;

  ServerSession& session() { return session_; }
  const ServerSession& session() const { return session_; }
  bool draining() const { return draining_; }

  /// True: a connection that admission has accepted may join `path`; `is_new`: as its first. If
  /// not, the executor closes it, and the client tries again.
  bool takes(PathId path, bool is_new) const;
  /// Begins a path, whose handshake must be finished in time.
  Path& add(PathId path, const ServerPathOptions& options, Instant now);
  /// Null: there is no such path.
  const Path* find(PathId path) const;
  void forget(PathId path) { paths_.erase(path); }

  /// The executor begins to read a connection of the path. Until end_reading() the path stays open.
  void begin_reading(Path& path) { path.reading_ = true; }
  /// The executor has read it; `more`: there is more to read. False: the path is closed.
  bool end_reading(Path& path, bool more);

  void handle(const ServerEvent& event, Instant now);
  void handle_timeout(Instant now);
  /// May change with each event, and with add().
  Instant next_deadline() const;
  /// A path's end may come with its next deadline, because its client is silent.
  bool has_silent_path() const;

 private:
  PathRefusal admit(Path& path, std::string_view name);
  void on_fenced(Path& path, Complaint why, bool fault);
  void end_connection(Path& path, const PathEnd& end);
  void close(Path& path, PathEnd end);
  void close_older_generation();
  void read_and_judge();
  void judge_later();
  void on_lingering() override;
  void on_gone() override;
  void time_out(Path& path);
  void tick(Path& path);
  void drain();
  void end_all(const PathEnd& end);
  void handle(Path& path, const ServerEvent& event);

  const ServerMachineOptions options_;
  ServerExecutor& executor_;
  ServerSession session_;
  std::map<PathId, Path> paths_;
  PathId older_generation_ = 0;  ///< of the path that is being admitted
  Instant now_{};                ///< of the newest event
  /// The end of the wait for the client. None: there is a path; max: the wait is over.
  std::optional<Instant> linger_until_;
  bool judging_later_ = false;
  bool draining_ = false;
};

}  // namespace rtrs
