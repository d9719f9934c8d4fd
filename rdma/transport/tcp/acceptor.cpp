// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/acceptor.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <exception>
#include <list>
#include <memory>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "rdma/core/crowd.hpp"
#include "rdma/descriptor_reserve.hpp"
#include "rdma/network.hpp"
#include "rdma/owned_fd.hpp"
#include "rdma/transport/await.hpp"
#include "rdma/transport/sure.hpp"
#include "rdma/transport/tcp/connector.hpp"
#include "rdma/transport/tcp/greeting.hpp"

namespace rtrs::tcp {
namespace {

namespace asio = boost::asio;
using AsioTcp = asio::ip::tcp;
using Socket = AsioTcp::socket;
using boost::system::error_code;
/// The pause before accepting again when the process is out of descriptors or memory.
constexpr auto kAcceptPause = std::chrono::milliseconds{100};
/// The time in which everybody waits when there is no memory for that pause.
constexpr auto kNoMemoryPause = std::chrono::milliseconds{1};
/// Bytes, several times what a pause takes.
constexpr std::size_t kReserve = 16'384;
/// Closed connections for which threads may still do public-key work.
constexpr std::size_t kMostLeaving = 8;

std::string text_of(const AsioTcp::endpoint& endpoint) {
  std::ostringstream text;
  text << endpoint;
  return text.str();
}

/// Errors of accept(2) that concern one connection, or none at all.
bool is_transient(int error) {
  return error == EAGAIN || error == EINTR || error == ECONNABORTED || error == EPROTO ||
         error == EPERM || error == ENETDOWN || error == ENETUNREACH || error == EHOSTUNREACH ||
         error == EHOSTDOWN || error == ENONET || error == ENOPROTOOPT || error == EOPNOTSUPP;
}

class TcpAcceptor final : public Acceptor {
 public:
  TcpAcceptor(Reactor& reactor, AsioTcp::acceptor acceptor, AcceptorOptions options)
      : reactor_{reactor},
        acceptor_{std::move(acceptor)},
        options_{std::move(options)},
        one_left_{reactor.io(), asio::steady_timer::time_point::max()},
        pause_{reactor.io()} {}

  void start(Welcome welcome) override {
    welcome_ = std::move(welcome);
    asio::co_spawn(reactor_.io(), accept_loop(), asio::detached);
  }

  void close() override {
    error_code ignored;
    acceptor_.close(ignored);
    one_left_.cancel();
    for (auto& handshake : handshakes_) handshake->socket.close(ignored);
  }

  std::string address() const override {
    error_code ignored;
    return "tcp:" + text_of(acceptor_.local_endpoint(ignored));
  }

 private:
  /// A connection before its hello has been read. When there are too many, one makes room: the
  /// oldest of the host that has most of them.
  struct Handshake {
    explicit Handshake(Socket s) : socket{std::move(s)} {
      error_code ignored;
      peer = text_of(socket.remote_endpoint(ignored));
      host = host_in_networks(peer);
    }
    Socket socket;
    std::string peer;
    std::string host;
  };
  using Handshakes = std::list<std::shared_ptr<Handshake>>;
  /// A handshake is in the list as long as its place exists, and the acceptor.
  class Place {
   public:
    explicit Place(TcpAcceptor& acceptor, Socket socket)
        : acceptor_{&acceptor}, alive_{acceptor.alive_} {
      acceptor.handshakes_.push_back(std::make_shared<Handshake>(std::move(socket)));
      at_ = std::prev(acceptor.handshakes_.end());
    }
    Place(Place&& other) noexcept
        : acceptor_{std::exchange(other.acceptor_, nullptr)},
          alive_{std::move(other.alive_)},
          at_{other.at_} {}
    ~Place() { give_back(); }
    Place& operator=(Place&&) = delete;

    const std::shared_ptr<Handshake>& handshake() const { return *at_; }
    void give_back() {
      TcpAcceptor* const acceptor = std::exchange(acceptor_, nullptr);
      if (acceptor == nullptr || alive_.expired()) return;
      acceptor->handshakes_.erase(at_);
      acceptor->one_left_.cancel();
    }

   private:
    TcpAcceptor* acceptor_;
    std::weak_ptr<void> alive_;
    Handshakes::iterator at_;
  };

  asio::awaitable<void> accept_loop();
  asio::awaitable<void> accept_next();
  void receive(Socket socket);
  asio::awaitable<void> attend(Place place);
  asio::awaitable<void> shake_hands(Place place);
  void complain(const char* why);
  void log(LogLevel level, const std::string& text) const {
    if (options_.log) options_.log(level, text);
  }
  void refused(LogLevel level, const std::string& peer, const std::string& why) const {
    options_.owner->on_refused(level, peer, why);
  }

  void tell(const std::string& peer, const Refusal& why) const {
    if (!why.of_auth) return refused(why.level, peer, why.text);
    options_.owner->on_unproven({peer, address(), why.user, why.how, why.text});
  }

  Reactor& reactor_;
  AsioTcp::acceptor acceptor_;
  AcceptorOptions options_;
  Welcome welcome_;
  Handshakes handshakes_;
  asio::steady_timer one_left_;  ///< cancelled when a handshake has ended
  asio::steady_timer pause_;     ///< after the process was out of descriptors or memory
  bool must_pause_ = false;
  std::unique_ptr<std::byte[]> reserve_;  ///< given back to the heap for a pause without memory
  std::string complaint_;                 ///< the last one; "" = connections are accepted
  /// Coroutines may be destroyed after it.
  std::shared_ptr<void> alive_ = std::make_shared<char>();
};

asio::awaitable<void> TcpAcceptor::accept_loop() {
  while (acceptor_.is_open()) {
    try {
      co_await accept_next();
    } catch (const std::exception& lack) {
      reserve_.reset();
      // Nobody else gets a turn while there is no memory to wait.
      if (std::exchange(must_pause_, true)) std::this_thread::sleep_for(kNoMemoryPause);
      complain(lack.what());
    }
  }
}

void TcpAcceptor::complain(const char* why) {
  tell_if_possible([&] {
    if (complaint_ == why) return;
    complaint_ = why;
    log(LogLevel::error, std::string{"cannot accept connections: "} + why +
                             " (raise LimitNOFILE when descriptors ran out)");
  });
}

/// Errors: throws when the process lacks something.
asio::awaitable<void> TcpAcceptor::accept_next() {
  if (must_pause_) {
    pause_.expires_after(kAcceptPause);
    co_await pause_.async_wait(kAwait);
    must_pause_ = false;
  }
  if (!reserve_) reserve_ = std::make_unique<std::byte[]>(kReserve);
  auto [closed] = co_await acceptor_.async_wait(AsioTcp::acceptor::wait_read, kAwait);
  if (closed) co_return;
  // Or they would come faster than those leave whom they push out, each with its memory.
  while (handshakes_.size() >= options_.max_handshakes + kMostLeaving && acceptor_.is_open()) {
    co_await one_left_.async_wait(kAwait);
  }
  if (!acceptor_.is_open()) co_return;
  // By hand: programs that this one starts would inherit a socket of Asio's.
  const int descriptor =
      ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (descriptor < 0) {
    if (is_transient(errno)) co_return;
    throw std::system_error{errno, std::system_category()};
  }
  OwnedFd accepted{descriptor};
  Socket socket{reactor_.io()};
  error_code error;
  const AsioTcp protocol = acceptor_.local_endpoint(error).protocol();
  if (socket.assign(protocol, descriptor, error)) throw boost::system::system_error{error};
  accepted.release();
  receive(std::move(socket));
  complaint_.clear();
}

void TcpAcceptor::receive(Socket socket) {
  // One at least: its hello may push somebody out, or be answered with the reason why not.
  const auto most = std::clamp(options_.owner->room(), 1U, options_.max_handshakes);
  const bool reserved = is_reserved(socket.native_handle());
  if (reserved || handshakes_.size() >= most) {
    // An honest client needs milliseconds, so the oldest is the least likely one.
    Crowd<Socket*> crowd;
    for (const auto& handshake : handshakes_) {
      if (handshake->socket.is_open()) crowd.add(handshake->host, &handshake->socket);
    }
    error_code ignored;
    if (const auto goes = crowd.first_of_most()) {
      (*goes)->close(ignored);
    } else if (reserved) {
      return refused(LogLevel::warning, text_of(socket.remote_endpoint(ignored)),
                     "refused: the last descriptors are kept for those who are there (raise "
                     "LimitNOFILE)");
    }
  }
  asio::co_spawn(reactor_.io(), attend(Place{*this, std::move(socket)}), asio::detached);
}

/// An exception would lead to the end of the process: Asio takes memory to end a coroutine that has
/// not waited for anything yet, and the loop throws when there is none.
asio::awaitable<void> TcpAcceptor::attend(Place place) {
  try {
    co_await shake_hands(std::move(place));
    co_return;
  } catch (const std::exception& lack) {
    tell_if_possible(
        [&] { log(LogLevel::error, std::string{"refused a client: "} + lack.what()); });
  }
  await_memory();
}

asio::awaitable<void> TcpAcceptor::shake_hands(Place place) {
  const std::shared_ptr<Handshake> handshake = place.handshake();
  tune_socket(handshake->socket.native_handle());

  asio::steady_timer deadline{reactor_.io(), options_.handshake_timeout};
  deadline.async_wait([handshake](error_code cancelled) {
    error_code unused;
    if (!cancelled) handshake->socket.close(unused);
  });
  auto greeting = co_await receive_greeting(handshake->socket, options_);
  if (!greeting) {
    // Closed by the deadline or a newcomer, perhaps.
    const Refusal& why = greeting.error();
    tell(handshake->peer, why);
    if (why.answered) co_await let_read(handshake->socket);
  }
  deadline.cancel();
  place.give_back();
  if (!greeting) co_return;
  if (!handshake->socket.is_open()) {
    // In the moment the last byte came.
    co_return refused(LogLevel::info, handshake->peer, "no handshake (it came too late)");
  }
  auto incoming = std::make_unique<TcpIncoming>(
      Stream{handshake->socket.release(), std::move(greeting->tls)}, greeting->digests);
  incoming->peer = handshake->peer;
  incoming->record = greeting->record;
  welcome_(std::move(incoming));
}

}  // namespace

tl::expected<std::unique_ptr<Acceptor>, Failure> listen(Reactor& reactor,
                                                        const ListenAddress& address,
                                                        AcceptorOptions options) {
  const std::string where = "tcp:" + address.host + ':' + std::to_string(address.port);
  const bool everywhere = address.host.empty() || address.host == "*";
  error_code error;
  const auto host = asio::ip::make_address(everywhere ? "::" : address.host, error);
  if (error) {
    return tl::unexpected(Failure{
        EINVAL, "cannot listen on " + where + ": not a numeric address (for all addresses use *)"});
  }
  const AsioTcp::endpoint endpoint{host, address.port};
  AsioTcp::acceptor acceptor{reactor.io()};
  if (const int descriptor = open_socket(endpoint.protocol().family()); descriptor < 0) {
    error = {errno, boost::system::system_category()};
  } else if (acceptor.assign(endpoint.protocol(), descriptor, error)) {
    ::close(descriptor);
  }
  if (!error) acceptor.set_option(asio::socket_base::reuse_address{true}, error);
  if (!error && host.is_v6()) {
    acceptor.set_option(asio::ip::v6_only{!everywhere}, error);
  }
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    std::string text = "cannot listen on " + where + ": " + error.message();
    if (error == asio::error::address_in_use) {
      text += " (another program uses this port; find it with 'ss -ltnp', or choose another one)";
    } else if (error == asio::error::access_denied) {
      text += " (ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one)";
    } else if (error.value() == EADDRNOTAVAIL) {
      text += " (this host has no such address: see 'ip address')";
    }
    return tl::unexpected(Failure{error.value(), text});
  }
  return std::make_unique<TcpAcceptor>(reactor, std::move(acceptor), std::move(options));
}

tl::expected<std::unique_ptr<Acceptor>, Failure> adopt(Reactor& reactor, int descriptor,
                                                       AcceptorOptions options) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  int listens = 0;
  socklen_t flag_size = sizeof(listens);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      (address.ss_family != AF_INET && address.ss_family != AF_INET6) ||
      getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &flag_size) != 0 ||
      listens == 0) {
    return tl::unexpected(
        Failure{EINVAL, "the socket passed as descriptor " + std::to_string(descriptor) +
                            " is not a listening TCP socket (check the .socket unit)"});
  }
  fcntl(descriptor, F_SETFD, FD_CLOEXEC);
  AsioTcp::acceptor acceptor{reactor.io()};
  error_code error;
  acceptor.assign(address.ss_family == AF_INET ? AsioTcp::v4() : AsioTcp::v6(), descriptor, error);
  if (!error) acceptor.native_non_blocking(true, error);
  if (error) {
    return tl::unexpected(
        Failure{error.value(), "cannot use the passed socket: " + error.message()});
  }
  return std::make_unique<TcpAcceptor>(reactor, std::move(acceptor), std::move(options));
}

}  // namespace rtrs::tcp
