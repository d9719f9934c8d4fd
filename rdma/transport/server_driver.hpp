// The server in operation: reactors, listeners, handshakes, sessions.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rdma/core/admission.hpp"
#include "rdma/server.hpp"
#include "rdma/transport/reactor.hpp"
#include "rdma/transport/session_host.hpp"
#include "rdma/transport/tcp/frame.hpp"

namespace rtrs {

/// Connections are accepted and shake hands on reactor 0; then they belong to their session's
/// reactor.
///
/// Threads: as Server; handshake functions on reactor 0; sessions on theirs.
class ServerDriver final : public Server {
 public:
  ServerDriver(ServerOptions options, ServerHandler& handler);
  ~ServerDriver() override;

  tl::expected<void, Failure> start() override;
  std::vector<std::string> addresses() const override;
  bool stop(Duration drain) override;
  std::vector<Reactor*> reactors() override;

 private:
  using Socket = boost::asio::ip::tcp::socket;

  /// A connection whose hello has not been read yet. The oldest makes room when there are too many.
  struct Handshake {
    explicit Handshake(Socket s) : socket{std::move(s)} {}
    Socket socket;
    std::string peer;
  };
  using Handshakes = std::list<std::shared_ptr<Handshake>>;

  tl::expected<void, Failure> listen(const ListenAddress& address);
  tl::expected<void, Failure> adopt(int descriptor);
  boost::asio::awaitable<void> accept_loop(boost::asio::ip::tcp::acceptor& acceptor);
  void welcome(Socket socket);
  boost::asio::awaitable<void> shake_hands(Handshakes::iterator place);
  /// False: the connection was refused.
  bool on_hello(Handshake& handshake, const tcp::Hello& bytes);
  std::shared_ptr<SessionHost> create_session(Admission::SessionId id,
                                              const wire::ConnectParameters& parameters,
                                              const std::string& peer);
  SessionEnvironment environment(Admission::SessionId id, Reactor& reactor);
  void forget_session(Admission::SessionId id);
  void close_listeners();
  template <class Function>
  void for_each_session(Function function);
  std::uint16_t choose_digests(std::uint16_t offered) const;
  void log(LogLevel level, const std::string& text) const;

  ServerOptions options_;
  ServerHandler& handler_;
  std::uint64_t epoch_;
  std::vector<std::unique_ptr<Reactor>> reactors_;
  std::vector<std::thread> threads_;
  std::vector<std::unique_ptr<boost::asio::ip::tcp::acceptor>> acceptors_;
  Handshakes handshakes_;
  std::size_t next_reactor_ = 0;
  std::atomic<unsigned> connections_{0};

  std::mutex mutex_;  ///< guards what follows: touched at handshakes and closes only
  std::condition_variable session_gone_;
  Admission admission_;
  std::map<Admission::SessionId, std::shared_ptr<SessionHost>> sessions_;
  bool stopping_ = false;
};

}  // namespace rtrs
