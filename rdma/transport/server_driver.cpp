#include "rdma/transport/server_driver.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <random>
#include <utility>

#include "rdma/transport/factory.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;
constexpr unsigned kMaxDefaultReactors = 8;
constexpr std::uint32_t kMaxHeaderSize = 4096;
/// How long sessions that were told to close get to do so.
constexpr auto kClosePause = std::chrono::milliseconds{100};

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

AcceptorOptions acceptor_options(const ServerOptions& options) {
  AcceptorOptions acceptor;
  acceptor.max_handshakes = options.max_handshakes;
  acceptor.handshake_timeout = options.handshake_timeout;
  acceptor.header_digest = options.header_digest;
  acceptor.data_digest = options.data_digest;
  acceptor.log = options.log;
  return acceptor;
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
  for (const auto& acceptor : acceptors_) all.push_back(acceptor->address());
  return all;
}

void ServerDriver::log(LogLevel level, const std::string& text) const {
  if (options_.log) options_.log(level, text);
}

// ---- Start and stop ----------------------------------------------------------------------------

tl::expected<void, Failure> ServerDriver::start() {
  if (auto ok = check(options_); !ok) return ok;
  const auto keep = [this](auto acceptor) -> tl::expected<void, Failure> {
    if (!acceptor) return tl::unexpected(acceptor.error());
    acceptors_.push_back(std::move(*acceptor));
    return {};
  };
  AcceptorOptions settings = acceptor_options(options_);
  settings.room = [this] {
    return options_.max_connections - std::min(options_.max_connections, connections_.load());
  };
  for (const int descriptor : options_.listen_fds) {
    if (auto ok = keep(adopt(*reactors_[0], descriptor, settings)); !ok) return ok;
  }
  for (const ListenAddress& address : options_.listen) {
    if (auto ok = keep(listen(*reactors_[0], address, settings)); !ok) return ok;
  }
  for (auto& acceptor : acceptors_) {
    acceptor->start([this](std::unique_ptr<Incoming> incoming) { welcome(std::move(incoming)); });
  }
  for (auto& reactor : reactors_) {
    threads_.emplace_back([&loop = *reactor] {
      pthread_setname_np(pthread_self(), ("rtrs-" + std::to_string(loop.index())).c_str());
      loop.run();
    });
  }
  return {};
}

void ServerDriver::close_acceptors() {
  for (auto& acceptor : acceptors_) acceptor->close();
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
  asio::post(reactors_[0]->io(), [this] { close_acceptors(); });
  for_each_session([](SessionHost& host) { host.drain(); });
  bool all_gone = false;
  {
    std::unique_lock lock{mutex_};
    all_gone = session_gone_.wait_for(lock, drain, [this] { return sessions_.empty(); });
  }
  if (!all_gone) {
    for_each_session([](SessionHost& host) { host.close("the server stops", LogLevel::warning); });
    std::unique_lock lock{mutex_};
    all_gone = session_gone_.wait_for(lock, kClosePause, [this] { return sessions_.empty(); });
  }
  for (auto& reactor : reactors_) reactor->stop();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
  close_acceptors();  // the loop may have ended before it came to that
  return all_gone;
}

// ---- New connections, on reactor 0 -------------------------------------------------------------

void ServerDriver::welcome(std::unique_ptr<Incoming> incoming) {
  const auto refuse = [&](int error, const std::string& why) {
    log(LogLevel::warning, incoming->peer + ": refused: " + why);
    incoming->reject(wire::encode_reject(error));
  };
  const auto parameters = wire::decode_connect_request(incoming->record);
  if (!parameters) return refuse(ECONNRESET, to_string(parameters.error()));
  if (connections_ >= options_.max_connections) {
    return refuse(ENOMEM, "there are " + std::to_string(options_.max_connections) +
                              " connections already (max_connections)");
  }
  std::shared_ptr<SessionHost> host;
  {
    const std::lock_guard lock{mutex_};
    if (stopping_) return;
    const auto decision = admission_.admit(*parameters);
    if (decision.error != 0) return refuse(decision.error, decision.why);
    host = decision.created ? create_session(decision.session, *parameters, *incoming)
                            : sessions_.at(decision.session);
  }
  ++connections_;
  // A shared pointer only because the event loop wants its handlers to be copied.
  auto shared = std::make_shared<std::unique_ptr<Incoming>>(std::move(incoming));
  asio::post(host->reactor().io(),
             [host, shared, cid = parameters->cid] { host->add(cid, std::move(*shared)); });
}

std::shared_ptr<SessionHost> ServerDriver::create_session(Admission::SessionId id,
                                                          const wire::ConnectParameters& parameters,
                                                          const Incoming& incoming) {
  Reactor& reactor = *reactors_[next_reactor_++ % reactors_.size()];
  ServerSessionOptions options = session_options(options_, epoch_);
  options.new_keys = options_.always_invalidate && incoming.may_be_linux;
  options.extension = parameters.extension.present;
  options.features &= parameters.extension.features;
  if (!options.extension && incoming.may_be_linux) {
    options.heartbeat_interval = kLinuxHeartbeatInterval;
    options.heartbeat_misses = kLinuxHeartbeatMisses;
  }
  auto host = std::make_shared<SessionHost>(reactor, options, handler_, parameters.cid_count,
                                            incoming.peer, environment(id, reactor));
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

}  // namespace rtrs
