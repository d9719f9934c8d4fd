// SPDX-License-Identifier: BSD-3-Clause
// One path of a server's session in operation: its connections on its reactor, its chunks.
#pragma once

#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rdma/core/server/machine.hpp"
#include "rdma/log.hpp"
#include "rdma/server.hpp"
#include "rdma/transport/acceptor.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/transport/reactor.hpp"

namespace rtrs {

/// The server, for its sessions and their paths.
///
/// Threads: the reactor of the session.
class SessionEnvironment {
 public:
  using SessionId = Admission::SessionId;
  using Place = Admission::Place;  ///< of a path

  /// `user`: proven by the path, if it had to.
  virtual Admission::Admitted admit(Place path, std::string_view name,
                                    std::optional<std::string_view> user) = 0;
  /// The reason why a user who has proven to be one is none any more; "" = it still is.
  virtual std::string withdrawn(const Identity& user) = 0;
  virtual void on_path_closing(Place path, bool over) = 0;  ///< over: and the session is over
  /// The path is closed, and its requests still hold so many bytes.
  virtual void on_path_shrunk(Place path, std::uint64_t held) = 0;
  /// Nothing has come over the path for an interval of heartbeats; or something came again.
  virtual void on_path_silent(Place path, bool silent) = 0;
  virtual void on_starved() = 0;  ///< requests of a path begin to wait for memory
  /// Answer with SessionHost::forget(), from a later event of this reactor.
  virtual void on_path_gone(Place path, Reactor& reactor) = 0;
  virtual void on_idle(SessionId session) = 0;  ///< it lingers, and nothing executes
  /// Nothing is left; the host may be destroyed from a later event of this reactor.
  virtual void on_session_gone(SessionId session, Reactor& reactor) = 0;
  virtual void on_connection_closed() = 0;  ///< once per connection
  /// At the entrance of this number; its address is to be added.
  virtual void on_auth_refused(AuthRefusal refusal, unsigned entrance) = 0;
  /// `peer`: the client's address, by which its lines are limited.
  virtual void log_of_client(LogLevel level, const std::string& peer, const std::string& line) = 0;

 protected:
  ~SessionEnvironment() = default;
};

/// The host of a session, for the hosts of its paths.
class PathHostOwner {
 public:
  virtual void report(const ServerEvent& event) = 0;
  virtual void log_of_path(LogLevel level, const std::string& line) = 0;

 protected:
  ~PathHostOwner() = default;
};

/// Threads: its reactor.
class PathHost final : public ServerPathExecutor {
 public:
  /// `session`: the number of its session, which has its reactor already.
  PathHost(SessionEnvironment& server, Admission::SessionId session, PathHostOwner& owner,
           ServerMachine& machine, ServerMachine::Path& place, std::string peer);
  ~PathHost();
  PathHost(const PathHost&) = delete;
  PathHost& operator=(const PathHost&) = delete;

  /// Lets a client's connection in after its connect request was admitted.
  void add(std::uint16_t cid, std::unique_ptr<Incoming> incoming);
  bool open() const { return place_.open(); }
  /// The user proven by its client since it came, if it had to.
  std::optional<std::string_view> user() const;
  /// Proven by its client, be it since it came or before. Null: nothing was.
  const Identity* identity(std::uint16_t cid = 0) const;
  /// The identities of all connections, each key once: a user may renew a key while a path is made.
  std::vector<Identity> identities() const;
  /// For the log: what its client has proven does not let it in.
  void report_auth_refused(const std::string& why, std::uint16_t cid = 0) const;
  ServerSessionStatus::Path status() const;

 private:
  /// One connection with its place in the event loop.
  struct Link final : Deferred, ReadinessHandler, Soloist {
    Link(PathHost& owner, std::unique_ptr<Connection> c);
    void run_deferred() override;
    void on_readable() override;
    void on_writable() override;
    bool play_on(OneCall* call) override;
    void play_out() override;

    PathHost& host;
    std::unique_ptr<Connection> connection;
    QueuePairHandler* handler = nullptr;
    Readiness readiness;
    bool again = false;    ///< progress_later() was called
    bool starves = false;  ///< it is read when there is memory for what comes next
  };

  // The decisions about it
  bool read() override;
  void serves() override;
  void leaves(const PathEnd& end, bool over) override;
  void close() override;
  void look() override;
  void silence(bool silent) override { server_.on_path_silent(number_, silent); }
  void send_rest() override;
  // For its path
  bool provide_chunks() override;
  void give_back(std::span<const MutableBytes> unused, std::uint64_t held) override;
  void delay_answer(ServerRequest& request, int error) override;
  void discard(std::span<const MutableBytes> parts) override;
  void await_memory() override;
  void wake() override;
  void gone() override { server_.on_path_gone(number_, reactor_); }

  void open(std::uint16_t cid, Incoming& incoming);
  void fail(const std::exception& lack);
  void report(ServerEvent::Kind kind, PathEnd end = {}) const;
  using Look = Connection::Status (Connection::*)(QueuePairHandler&);  ///< progress or glance
  void progress(Link& link);
  Connection::Status take_arrivals(Link& link, Look how);
  void follow_up(Link& link, Connection::Status status);
  void progress_later(Link& link);
  std::string security() const;
  std::uint16_t cid_of(const Link& link) const;
  void answer_delayed();
  void go_on();
  void show_life_later();
  void show_life();
  void end_if_left(Link& link);
  void release();
  void finish();
  void log(LogLevel level, const char* event, const std::string& text) const;

  SessionEnvironment& server_;
  const Admission::Place number_;
  PathHostOwner& owner_;
  Reactor& reactor_;
  ServerMachine& machine_;
  ServerMachine::Path& place_;
  ServerPath& path_;
  ServerSession& session_;
  std::string peer_;
  MutableBytes memory_;  ///< of the chunks
  std::vector<std::unique_ptr<Link>> links_;
  /// Errors of writes that wait, oldest first.
  struct Delayed {
    Instant due;
    ServerRequest* request;
    int error;
  };
  std::deque<Delayed> delayed_;
  boost::asio::steady_timer delay_timer_;
  boost::asio::steady_timer memory_timer_;
  bool shows_life_ = false;               ///< the timer runs: requests wait, or have lately
  std::atomic<bool> woken_{false};        ///< and has not gone on yet
  std::shared_ptr<PathContext> context_;  ///< the transport's state for the path
};

}  // namespace rtrs
