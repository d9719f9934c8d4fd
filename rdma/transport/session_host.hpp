// One session of a server in operation: its connections on its reactor.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rdma/core/admission.hpp"
#include "rdma/core/server_path.hpp"
#include "rdma/core/server_session.hpp"
#include "rdma/log.hpp"
#include "rdma/transport/acceptor.hpp"
#include "rdma/transport/connection.hpp"
#include "rdma/transport/reactor.hpp"

namespace rtrs {

/// What a session needs of its server.
struct SessionEnvironment {
  std::function<bool(std::string_view)> claim_name;
  std::function<void()> on_closing;  ///< the path closes
  std::function<void()> on_gone;  ///< nothing is left; the host may be destroyed from a later event
  std::function<void()> on_connection_closed;  ///< once per connection
  Log log;
  Duration handshake_timeout{};
};

/// Threads: its reactor, except the constructor.
class SessionHost {
 public:
  SessionHost(Reactor& reactor, ServerSessionOptions options, ServerHandler& handler,
              std::uint16_t cid_count, std::string peer, SessionEnvironment environment);
  ~SessionHost();
  SessionHost(const SessionHost&) = delete;
  SessionHost& operator=(const SessionHost&) = delete;

  Reactor& reactor() { return reactor_; }
  const ServerSessionOptions& options() const { return options_; }

  /// Lets a client's connection in whose connect request was admitted.
  void add(std::uint16_t cid, std::unique_ptr<Incoming> incoming);
  /// No more requests are read; closes as soon as nothing executes and the replies are out.
  void drain();
  void close(const std::string& why, LogLevel level);

 private:
  /// One connection with its place in the event loop.
  struct Link final : Deferred {
    Link(SessionHost& owner, std::unique_ptr<Connection> c);
    void run_deferred() override;

    SessionHost& host;
    std::unique_ptr<Connection> connection;
    QueuePairHandler* handler = nullptr;
    boost::asio::posix::stream_descriptor descriptor;
    bool writing = false;
  };

  void start_timers();
  void wait_to_read(Link& link);
  void wait_to_write(Link& link);
  void progress(Link& link);
  void schedule_tick();
  bool provide_chunks();
  void delay_answer(ServerRequest& request, int error);
  void answer_delayed();
  void check_drained();
  void log(LogLevel level, const std::string& text) const;

  Reactor& reactor_;
  ServerSessionOptions options_;
  SessionEnvironment environment_;
  ServerSession session_;
  std::vector<std::unique_ptr<Link>> links_;
  /// Errors of writes that wait, oldest first.
  struct Delayed {
    Instant due;
    ServerRequest* request;
    int error;
  };
  std::deque<Delayed> delayed_;
  boost::asio::steady_timer delay_timer_;
  std::shared_ptr<PathContext> context_;  ///< what the transport keeps for the path
  boost::asio::steady_timer timer_;       ///< handshake deadline, then heartbeats
  bool started_ = false;
  bool draining_ = false;
  bool closed_ = false;
};

}  // namespace rtrs
