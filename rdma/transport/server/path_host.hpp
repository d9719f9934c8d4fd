// SPDX-License-Identifier: BSD-3-Clause
// One path of a server's session in operation: its connections on its reactor, its chunks.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
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

/// The host's functions for a path.
struct ServerPathHooks {
  std::function<void(const ServerEvent&)> report;
  std::function<void(bool over)> on_closing;          ///< see ServerPathExecutor::leaves()
  std::function<void(std::uint64_t held)> on_shrunk;  ///< it is closed, and holds so much memory
  std::function<void()> on_gone;                      ///< it may be destroyed from a later event
  std::function<void()> on_connection_closed;         ///< once per connection
  std::function<void(AuthRefusal)> on_auth_refused;   ///< without its listener
  Log log;
};

/// Threads: its reactor.
class PathHost final : public ServerPathExecutor {
 public:
  PathHost(Reactor& reactor, ServerMachine& machine, ServerMachine::Path& place, std::string peer,
           ServerPathHooks hooks);
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
  /// Of all its connections, each key once: a user may renew a key while a path is made.
  std::vector<Identity> identities() const;
  /// For the log: what its client has proven does not let it in.
  void tell_auth_refused(const std::string& why, std::uint16_t cid = 0) const;
  ServerSessionStatus::Path status() const;

 private:
  /// One connection with its place in the event loop.
  struct Link final : Deferred, ReadinessHandler, Soloist {
    Link(PathHost& owner, std::unique_ptr<Connection> c);
    void run_deferred() override;
    void on_readable() override;
    void on_writable() override;
    bool play_on() override;

    PathHost& host;
    std::unique_ptr<Connection> connection;
    QueuePairHandler* handler = nullptr;
    Readiness readiness;
    bool again = false;  ///< progress_later() was called
  };

  // The decisions about it
  bool read() override;
  void serves() override;
  void leaves(const PathEnd& end, bool over) override;
  void close() override;
  void look() override;
  void send_rest() override;
  void gone() override { hooks_.on_gone(); }

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
  bool provide_chunks();
  void give_back(std::span<const MutableBytes> unused, std::uint64_t held) const;
  void delay_answer(ServerRequest& request, int error);
  void answer_delayed();
  void release();
  void finish();
  void log(LogLevel level, const char* event, const std::string& text) const;

  Reactor& reactor_;
  ServerMachine& machine_;
  ServerMachine::Path& place_;
  ServerPath& path_;
  ServerSession& session_;
  std::string peer_;
  ServerPathHooks hooks_;
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
  std::shared_ptr<PathContext> context_;  ///< the transport's state for the path
};

}  // namespace rtrs
