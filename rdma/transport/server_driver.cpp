#include "rdma/transport/server_driver.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <utility>

#include "rdma/transport/tcp/connector.hpp"
#include "rdma/transport/tcp/queue_pair.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;
using AsioTcp = asio::ip::tcp;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr unsigned kMaxDefaultReactors = 8;
constexpr std::uint32_t kMaxHeaderSize = 4096;
/// How long to wait before accepting again when the process is out of descriptors or memory.
constexpr auto kAcceptPause = std::chrono::milliseconds{100};

ServerOptions with_defaults(ServerOptions options) {
  if (options.reactors == 0) {
    options.reactors = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxDefaultReactors);
  }
  if (options.memory_limit == 0) {
    const auto ram = static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                     static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
    options.memory_limit = std::min<std::uint64_t>(1ULL << 30, ram / 4);
  }
  return options;
}

ServerSessionOptions session_options(const ServerOptions& options, std::uint64_t epoch) {
  ServerSessionOptions session;
  session.queue_depth = static_cast<std::uint16_t>(options.queue_depth);
  session.max_io_size = options.max_io_size;
  session.max_header_size = kMaxHeaderSize;
  session.features = options.features;
  session.session_epoch = epoch;
  session.heartbeat_interval = options.heartbeat_interval;
  session.heartbeat_misses = options.heartbeat_misses;
  return session;
}

AdmissionLimits admission_limits(const ServerOptions& options) {
  return {options.max_sessions, options.max_connections_per_path,
          session_options(options, 0).chunk_memory(), options.memory_limit};
}

tl::expected<void, Failure> check(const ServerOptions& options) {
  const auto invalid = [](const std::string& text) {
    return tl::unexpected(Failure{EINVAL, text});
  };
  if (options.queue_depth < 1 || options.queue_depth > 65535) {
    return invalid("queue depth " + std::to_string(options.queue_depth) +
                   " is out of range: use 1 to 65535");
  }
  if (options.max_io_size < 4096 || options.max_io_size % 4096 != 0) {
    return invalid("max io size " + std::to_string(options.max_io_size) +
                   " must be a multiple of 4096");
  }
  if (!wire::fits_immediate(options.queue_depth, options.max_io_size + kMaxHeaderSize)) {
    return invalid("queue depth " + std::to_string(options.queue_depth) + " times max io size " +
                   std::to_string(options.max_io_size) +
                   " is more than the protocol can address (256 MiB): lower one of them");
  }
  if (admission_limits(options).session_memory > options.memory_limit) {
    return invalid("one session needs " + std::to_string(admission_limits(options).session_memory) +
                   " bytes of chunks, more than the memory limit of " +
                   std::to_string(options.memory_limit) +
                   ": raise the limit, or lower queue depth or max io size");
  }
  if (options.max_handshakes == 0) return invalid("max handshakes is 0: allow at least one");
  if (options.heartbeat_interval <= Duration::zero()) {
    return invalid("the heartbeat interval must be longer than zero");
  }
  if (options.handshake_timeout <= Duration::zero()) {
    return invalid("the handshake timeout must be longer than zero");
  }
  if (options.listen.empty() && options.listen_fds.empty()) {
    return invalid("no address to listen on");
  }
  return {};
}

std::string text_of(const AsioTcp::endpoint& endpoint) {
  std::ostringstream text;
  text << endpoint;
  return text.str();
}

/// A hello fits into the empty buffer of a new socket, so this never blocks.
bool send_record(int socket, const wire::ConnectResponse& record, std::uint16_t digests) {
  const tcp::Hello hello = tcp::make_hello(wire::bytes_of(record), digests);
  return ::send(socket, &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof(hello));
}

/// Errors of accept(2) that concern one connection, or none at all.
bool is_transient(int error) {
  return error == EAGAIN || error == EINTR || error == ECONNABORTED || error == EPROTO ||
         error == EPERM || error == ENETDOWN || error == ENETUNREACH || error == EHOSTUNREACH ||
         error == EHOSTDOWN || error == ENONET || error == ENOPROTOOPT || error == EOPNOTSUPP;
}

std::uint64_t random_epoch() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

}  // namespace

std::unique_ptr<Server> Server::create(ServerOptions options, ServerHandler& handler) {
  return std::make_unique<ServerDriver>(with_defaults(std::move(options)), handler);
}

Reactor* reactor_of(const ServerSession& session) { return session.reactor; }
const std::string& name_of(const ServerSession& session) { return session.name; }
const std::string& peer_of(const ServerSession& session) { return session.peer; }
std::uint32_t features_of(const ServerSession& session) { return session.options().features; }
void* context_of(const ServerSession& session) { return session.context; }

ServerDriver::ServerDriver(ServerOptions options, ServerHandler& handler)
    : options_{std::move(options)},
      handler_{handler},
      epoch_{random_epoch()},
      admission_{admission_limits(options_)} {
  for (unsigned i = 0; i < options_.reactors; ++i) {
    reactors_.push_back(std::make_unique<Reactor>(i));
  }
}

ServerDriver::~ServerDriver() { stop(Duration::zero()); }

std::vector<Reactor*> ServerDriver::reactors() {
  std::vector<Reactor*> all;
  for (auto& reactor : reactors_) all.push_back(reactor.get());
  return all;
}

std::vector<std::string> ServerDriver::addresses() const {
  std::vector<std::string> all;
  for (const auto& acceptor : acceptors_) {
    boost::system::error_code ignored;
    all.push_back(text_of(acceptor->local_endpoint(ignored)));
  }
  return all;
}

void ServerDriver::log(LogLevel level, const std::string& text) const {
  if (options_.log) options_.log(level, text);
}

// ---- Start and stop ----------------------------------------------------------------------------

tl::expected<void, Failure> ServerDriver::start() {
  if (auto ok = check(options_); !ok) return ok;
  for (const int descriptor : options_.listen_fds) {
    if (auto ok = adopt(descriptor); !ok) return ok;
  }
  for (const ListenAddress& address : options_.listen) {
    if (auto ok = listen(address); !ok) return ok;
  }
  for (auto& acceptor : acceptors_) {
    asio::co_spawn(reactors_[0]->io(), accept_loop(*acceptor), asio::detached);
  }
  for (auto& reactor : reactors_) {
    threads_.emplace_back([&loop = *reactor] {
      pthread_setname_np(pthread_self(), ("rtrs-" + std::to_string(loop.index())).c_str());
      loop.run();
    });
  }
  return {};
}

tl::expected<void, Failure> ServerDriver::listen(const ListenAddress& address) {
  const std::string where = address.host + ':' + std::to_string(address.port);
  if (address.transport != TransportKind::tcp) {
    return tl::unexpected(
        Failure{ENOTSUP, "cannot listen on rdma:" + where + ": this build has no RDMA transport"});
  }
  const bool everywhere = address.host.empty() || address.host == "*";
  boost::system::error_code error;
  const auto host = asio::ip::make_address(everywhere ? "::" : address.host, error);
  if (error) {
    return tl::unexpected(Failure{EINVAL, "cannot listen on tcp:" + where +
                                              ": not a numeric address (for all addresses use *)"});
  }
  const AsioTcp::endpoint endpoint{host, address.port};
  auto acceptor = std::make_unique<AsioTcp::acceptor>(reactors_[0]->io());
  if (const int descriptor = tcp::open_socket(endpoint.protocol().family()); descriptor < 0) {
    error = {errno, boost::system::system_category()};
  } else if (acceptor->assign(endpoint.protocol(), descriptor, error)) {
    ::close(descriptor);
  }
  if (!error) acceptor->set_option(asio::socket_base::reuse_address{true}, error);
  if (!error && host.is_v6()) {
    acceptor->set_option(asio::ip::v6_only{!everywhere}, error);
  }
  if (!error) acceptor->bind(endpoint, error);
  if (!error) acceptor->listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    std::string text = "cannot listen on tcp:" + where + ": " + error.message();
    if (error == asio::error::address_in_use) {
      text += " (another program uses this port; find it with 'ss -ltnp', or choose another one)";
    } else if (error == asio::error::access_denied) {
      text += " (ports below 1024 need CAP_NET_BIND_SERVICE: choose a higher one)";
    } else if (error.value() == EADDRNOTAVAIL) {
      text += " (this host has no such address: see 'ip address')";
    }
    return tl::unexpected(Failure{error.value(), text});
  }
  acceptors_.push_back(std::move(acceptor));
  return {};
}

tl::expected<void, Failure> ServerDriver::adopt(int descriptor) {
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
  auto acceptor = std::make_unique<AsioTcp::acceptor>(reactors_[0]->io());
  boost::system::error_code error;
  acceptor->assign(address.ss_family == AF_INET ? AsioTcp::v4() : AsioTcp::v6(), descriptor, error);
  if (!error) acceptor->native_non_blocking(true, error);
  if (error) {
    return tl::unexpected(
        Failure{error.value(), "cannot use the passed socket: " + error.message()});
  }
  acceptors_.push_back(std::move(acceptor));
  return {};
}

void ServerDriver::close_listeners() {
  for (auto& acceptor : acceptors_) {
    boost::system::error_code ignored;
    acceptor->close(ignored);
  }
  for (auto& handshake : handshakes_) {
    boost::system::error_code ignored;
    handshake->socket.close(ignored);
  }
}

template <class Function>
void ServerDriver::for_each_session(Function function) {
  const std::lock_guard lock{mutex_};
  for (auto& [id, host] : sessions_) {
    asio::post(host->reactor().io(), [host = host, function] { function(*host); });
  }
}

bool ServerDriver::stop(Duration drain) {
  if (threads_.empty()) return true;
  {
    const std::lock_guard lock{mutex_};
    stopping_ = true;
  }
  asio::post(reactors_[0]->io(), [this] { close_listeners(); });
  for_each_session([](SessionHost& host) { host.drain(); });
  bool all_gone = false;
  {
    std::unique_lock lock{mutex_};
    all_gone = session_gone_.wait_for(lock, drain, [this] { return sessions_.empty(); });
  }
  if (!all_gone) {
    for_each_session([](SessionHost& host) { host.close("the server stops", LogLevel::warning); });
    std::unique_lock lock{mutex_};
    all_gone = session_gone_.wait_for(lock, kAcceptPause, [this] { return sessions_.empty(); });
  }
  for (auto& reactor : reactors_) reactor->stop();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
  close_listeners();  // the loop may have ended before it came to that
  return all_gone;
}

// ---- Handshakes, on reactor 0 ------------------------------------------------------------------

asio::awaitable<void> ServerDriver::accept_loop(AsioTcp::acceptor& acceptor) {
  boost::system::error_code error;
  const AsioTcp protocol = acceptor.local_endpoint(error).protocol();
  bool complained = false;
  while (acceptor.is_open()) {
    auto [closed] = co_await acceptor.async_wait(AsioTcp::acceptor::wait_read, kAwait);
    if (closed) co_return;
    // By hand: programs that this one starts would inherit a socket of Asio's.
    const int descriptor =
        ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    Socket socket{reactors_[0]->io()};
    if (descriptor < 0) {
      error = {errno, boost::system::system_category()};
    } else if (socket.assign(protocol, descriptor, error)) {
      ::close(descriptor);
    }
    if (!error) {
      complained = false;
      welcome(std::move(socket));
    } else if (!is_transient(error.value())) {
      if (!std::exchange(complained, true)) {
        log(LogLevel::error, "cannot accept connections: " + error.message() +
                                 " (raise LimitNOFILE when descriptors ran out)");
      }
      asio::steady_timer pause{reactors_[0]->io(), kAcceptPause};
      co_await pause.async_wait(kAwait);
    }
  }
}

void ServerDriver::welcome(Socket socket) {
  if (connections_ >= options_.max_connections) {
    log(LogLevel::warning, "connection refused: there are " +
                               std::to_string(options_.max_connections) +
                               " already (max_connections)");
    return;  // closes it
  }
  if (handshakes_.size() >= options_.max_handshakes) {
    // An honest client needs milliseconds, so the oldest is the least likely one.
    boost::system::error_code ignored;
    handshakes_.front()->socket.close(ignored);
  }
  ++connections_;
  handshakes_.push_back(std::make_shared<Handshake>(std::move(socket)));
  asio::co_spawn(reactors_[0]->io(), shake_hands(std::prev(handshakes_.end())), asio::detached);
}

asio::awaitable<void> ServerDriver::shake_hands(Handshakes::iterator place) {
  const std::shared_ptr<Handshake> handshake = *place;
  boost::system::error_code ignored;
  handshake->peer = text_of(handshake->socket.remote_endpoint(ignored));
  tcp::tune_socket(handshake->socket.native_handle());

  asio::steady_timer deadline{reactors_[0]->io(), options_.handshake_timeout};
  deadline.async_wait([handshake](boost::system::error_code cancelled) {
    boost::system::error_code unused;
    if (!cancelled) handshake->socket.close(unused);
  });
  tcp::Hello hello;
  // The magic first, so that a peer of another kind is sent away at once.
  auto [failed, n] = co_await asio::async_read(handshake->socket,
                                               asio::buffer(&hello, sizeof(hello.magic)), kAwait);
  if (!failed && hello.magic == tcp::kHelloMagic) {
    auto [failed_later, m] = co_await asio::async_read(
        handshake->socket,
        asio::buffer(reinterpret_cast<char*>(&hello) + sizeof(hello.magic),
                     sizeof(hello) - sizeof(hello.magic)),
        kAwait);
    failed = failed_later;
  }
  deadline.cancel();
  handshakes_.erase(place);
  // Closed by the deadline or a newcomer in the moment the last byte came.
  if (!handshake->socket.is_open()) failed = asio::error::operation_aborted;
  if (failed) {
    log(LogLevel::info, handshake->peer + ": no handshake (" + failed.message() + ")");
    --connections_;
  } else if (!on_hello(*handshake, hello)) {
    --connections_;
  }
}

bool ServerDriver::on_hello(Handshake& handshake, const tcp::Hello& bytes) {
  const auto hello = tcp::decode_hello(wire::bytes_of(bytes));
  if (!hello) {
    log(LogLevel::info, handshake.peer + ": refused: " + to_string(hello.error()));
    return false;
  }
  const auto parameters = wire::decode_connect_request(hello->record);
  if (!parameters) {
    log(LogLevel::info, handshake.peer + ": refused: " + to_string(parameters.error()));
    send_record(handshake.socket.native_handle(), wire::encode_reject(ECONNRESET), 0);
    return false;
  }
  std::shared_ptr<SessionHost> host;
  {
    const std::lock_guard lock{mutex_};
    if (stopping_) return false;
    const auto decision = admission_.admit(*parameters);
    if (decision.error != 0) {
      log(LogLevel::warning, handshake.peer + ": refused: " + decision.why);
      send_record(handshake.socket.native_handle(), wire::encode_reject(decision.error), 0);
      return false;
    }
    host = decision.created ? create_session(decision.session, *parameters, handshake.peer)
                            : sessions_.at(decision.session);
  }
  const std::uint16_t digests = choose_digests(hello->digests);
  auto connection =
      std::make_shared<std::unique_ptr<Connection>>(std::make_unique<tcp::TcpQueuePair>(
          handshake.socket.release(), tcp::Digests{.header = (digests & tcp::kDigestHeader) != 0,
                                                   .data = (digests & tcp::kDigestData) != 0}));
  asio::post(host->reactor().io(), [host, connection, digests, cid = parameters->cid] {
    const int socket = (*connection)->descriptor();
    host->add(cid, std::move(*connection), [&host, socket, digests] {
      return send_record(socket, wire::encode(host->options().accept_parameters()), digests);
    });
  });
  return true;
}

std::shared_ptr<SessionHost> ServerDriver::create_session(Admission::SessionId id,
                                                          const wire::ConnectParameters& parameters,
                                                          const std::string& peer) {
  Reactor& reactor = *reactors_[next_reactor_++ % reactors_.size()];
  ServerSessionOptions options = session_options(options_, epoch_);
  options.extension = parameters.extension.present;
  options.features &= parameters.extension.features;
  auto host = std::make_shared<SessionHost>(reactor, options, handler_, parameters.cid_count, peer,
                                            environment(id, reactor));
  sessions_.emplace(id, host);
  return host;
}

SessionEnvironment ServerDriver::environment(Admission::SessionId id, Reactor& reactor) {
  SessionEnvironment environment;
  environment.claim_name = [this, id](std::string_view name) {
    const std::lock_guard lock{mutex_};
    return admission_.claim_name(id, name);
  };
  environment.on_closing = [this, id] {
    const std::lock_guard lock{mutex_};
    admission_.close(id);
  };
  // From a later event: the host is still on the stack of this one.
  environment.on_gone = [this, id, &reactor] {
    asio::post(reactor.io(), [this, id] { forget_session(id); });
  };
  environment.on_connection_closed = [this] { --connections_; };
  environment.log = options_.log;
  environment.handshake_timeout = options_.handshake_timeout;
  return environment;
}

void ServerDriver::forget_session(Admission::SessionId id) {
  std::shared_ptr<SessionHost> host;  // destroyed outside the lock
  const std::lock_guard lock{mutex_};
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  host = std::move(found->second);
  sessions_.erase(found);
  admission_.remove(id);
  session_gone_.notify_all();
}

std::uint16_t ServerDriver::choose_digests(std::uint16_t offered) const {
  const int wanted = (options_.header_digest ? tcp::kDigestHeader : 0) |
                     (options_.data_digest ? tcp::kDigestData : 0);
  return static_cast<std::uint16_t>(offered & wanted);
}

}  // namespace rtrs
