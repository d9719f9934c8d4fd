// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/server/driver.hpp"

#include <pthread.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <future>
#include <memory>
#include <utility>

#include "rdma/client_log.hpp"
#include "rdma/core/crowd.hpp"
#include "rdma/transport/clock.hpp"
#include "rdma/transport/server/options.hpp"
#include "rdma/transport/sure.hpp"
#include "rdma/transport/tls/proof_keys.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;
/// The time that sessions get to close when they were told to.
constexpr auto kClosePause = std::chrono::milliseconds{100};
/// The least time between two lines about requests that wait for memory.
constexpr auto kMemoryLine = std::chrono::minutes{1};

std::mt19937_64 seeded() {
  std::random_device device;
  std::seed_seq seed{device(), device(), device(), device()};
  return std::mt19937_64{seed};
}

}  // namespace

std::unique_ptr<Server> Server::create(ServerOptions options, ServerHandler& handler) {
  return std::make_unique<ServerDriver>(with_defaults(std::move(options)), handler);
}

Reactor* reactor_of(const ServerSession& session) { return session.reactor; }
const std::string& name_of(const ServerSession& session) { return session.name; }
const std::string& peer_of(const ServerSession& session) { return session.peer; }
const Identity& identity_of(const ServerSession& session) { return session.identity; }
std::uint32_t features_of(const ServerSession& session) { return session.options().features; }
const wire::Uuid& uuid_of(const ServerSession& session) { return session.options().uuid; }
unsigned paths_of(const ServerSession& session) { return session.connected_paths(); }
bool revoke_memory_path(ServerSession& session, const wire::Uuid& path) {
  return session.revoke(path);
}
bool recall_memory(ServerSession& session) { return session.recall(); }
void* context_of(const ServerSession& session) { return session.context; }
void let_go(ServerSession& session, wire::ConstBytes memory) { session.let_go(memory); }
bool end_if_idle(ServerSession& session) { return session.end_if_idle(); }
bool is_idle(const ServerSession& session) { return session.idle(); }

ServerDriver::ServerDriver(ServerOptions options, ServerHandler& handler)
    : options_{std::move(options)},
      handler_{handler},
      volatile_epoch_{volatile_epoch_of_this_machine(options_.losses)},
      random_{seeded()},
      id_{options_.id != 0 ? options_.id : random_() | 1},
      refusals_{options_.log},
      account_{options_.memory_limit, options_.memory_limit_per_user, &account_lock_},
      admission_{admission_limits(options_, &account_)} {
  for (unsigned i = 0; i < options_.reactors; ++i) {
    reactors_.push_back(std::make_unique<Reactor>(i, options_.make_call));
  }
}

ServerDriver::~ServerDriver() { stop(Duration::zero()); }

std::vector<Reactor*> ServerDriver::reactors() {
  std::vector<Reactor*> all;
  for (auto& reactor : reactors_) all.push_back(reactor.get());
  return all;
}

void ServerDriver::log(LogLevel level, const std::string& text) const {
  if (options_.log) options_.log(level, text);
}

// ---- Start and stop ----------------------------------------------------------------------------

tl::expected<void, Failure> ServerDriver::start() {
  if (auto ok = check(options_); !ok) return ok;
  if (auto ok = open_entrances(); !ok) return ok;
  for (unsigned i = 0; i < entrances_.size(); ++i) start_entrance(i);
  if (tls_keys_) asio::co_spawn(reactors_[0]->io(), look_after_keys(), asio::detached);
  if (!late_.empty()) asio::co_spawn(reactors_[0]->io(), open_late_entrances(), asio::detached);
  for (auto& reactor : reactors_) {
    threads_.emplace_back([&loop = *reactor] {
      pthread_setname_np(pthread_self(), ("rtrs-" + std::to_string(loop.index())).c_str());
      loop.run();
    });
  }
  return {};
}

void ServerDriver::close_acceptors() {
  for (const Entrance& entrance : entrances_) entrance.acceptor->close();
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
  // A client that loses a path comes back at once, and must not be turned away here.
  const auto closed = std::make_shared<std::promise<void>>();
  asio::post(reactors_[0]->io(), [this, closed] {
    close_acceptors();
    closed->set_value();
  });
  closed->get_future().wait_for(kClosePause);
  for_each_session([](SessionHost& host) { host.drain(); });
  bool all_gone = false;
  {
    std::unique_lock lock{mutex_};
    all_gone = session_gone_.wait_for(lock, drain, [this] { return sessions_.empty(); });
  }
  if (!all_gone) {
    for_each_session([](SessionHost& host) { host.close("the server stops"); });
    std::unique_lock lock{mutex_};
    all_gone = session_gone_.wait_for(lock, kClosePause, [this] { return sessions_.empty(); });
  }
  for (auto& reactor : reactors_) reactor->stop();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
  if (tls_workers_) {
    tls_workers_->stop();
    tls_workers_->join();
  }
  close_acceptors();  // the loop may have ended before it came to that
  return all_gone;
}

// ---- New connections, on reactor 0 -------------------------------------------------------------

/// A newcomer for which something is lacking is refused alone.
void ServerDriver::welcome(std::unique_ptr<Incoming> incoming, unsigned entrance) {
  try {
    let_in(incoming, entrance);
  } catch (const std::exception& lack) {
    if (incoming == nullptr) return;  // it is on its way to the session, which is told
    incoming->reject(wire::encode_reject(ENOMEM));
    tell_if_possible([&] {
      refusals_.say(LogLevel::warning, incoming->peer,
                    std::string{"refused: this server lacks what that takes: "} + lack.what(),
                    now());
    });
  }
}

void ServerDriver::let_in(std::unique_ptr<Incoming>& incoming, unsigned entrance) {
  const Entrance& in = entrances_[entrance];
  const auto refuse = [&](int error, const std::string& why) {
    if (error == EACCES) {
      refusals_.audit({incoming->peer, in.acceptor->address(), incoming->identity.name,
                       to_string(incoming->identity.how), why},
                      now());
    } else {
      refusals_.say(LogLevel::warning, incoming->peer, "refused: " + why, now());
    }
    incoming->reject(wire::encode_reject(error));
  };
  const auto parameters = wire::decode_connect_request(incoming->record);
  if (!parameters) return refuse(ECONNRESET, to_string(parameters.error()));
  if (!in.lets_in(incoming->peer)) return refuse(EACCES, "this listener has from= other networks");
  const bool proves = in.auth == AuthMode::psk && incoming->identity.name.empty();
  if (proves && (parameters->extension.features & wire::kFeatureAuthentication) == 0) {
    return refuse(EACCES, options_.words->wants_proof);
  }
  std::optional<std::string_view> user;  // none: it proves that later
  if (!proves) user = incoming->identity.name;
  // The lock is held while it is posted: set_access() must reach the path after it is there.
  const std::lock_guard lock{mutex_};
  if (stopping_) return;
  if (lacks_connections(*parameters)) {
    return refuse(ENOMEM, std::string{"its "} + std::to_string(parameters->cid_count) +
                              " connections are too many beside " +
                              std::to_string(connections_.load()) + " others (" +
                              options_.words->max_connections + ")");
  }
  const bool can_borrow = !incoming->may_be_linux;  // RDMA locks all memory of a path
  const auto decision = admission_.consider(*parameters, user, host_in_networks(incoming->peer),
                                            entrance, can_borrow);
  turn_away(decision.makes_room);
  if (decision.error != 0) return refuse(decision.error, decision.why);
  // A shared pointer only because the event loop wants its handlers to be copied.
  std::shared_ptr<std::unique_ptr<Incoming>> shared;
  try {
    auto host = decision.new_session ? create_session(decision.session, *parameters, *incoming)
                                     : sessions_.at(decision.session);
    Arrival arrival{decision.path, decision.new_path, parameters->cid,
                    path_options(*parameters, *incoming, entrance, proves)};
    if (decision.memory < admission_limits(options_).path_memory) {
      arrival.options.account = &account_;
      arrival.options.floor = decision.memory;
    }
    shared = std::make_shared<std::unique_ptr<Incoming>>(std::move(incoming));
    asio::post(host->reactor().io(),
               [host, shared, arrival] { host->add(arrival, std::move(*shared)); });
  } catch (...) {
    if (shared != nullptr) incoming = std::move(*shared);
    if (decision.new_session) sessions_.erase(decision.session);
    admission_.withdraw(decision, parameters->cid);
    throw;
  }
  ++connections_;
}

bool ServerDriver::Entrance::lets_in(std::string_view peer) const {
  return from.empty() ||
         std::ranges::any_of(from, [&](const Network& network) { return lies_in(peer, network); });
}

/// All connections of a path are counted with its first one: one that cannot be finished would keep
/// others out, and its client would not learn why. Somebody else who is half open makes room.
bool ServerDriver::lacks_connections(const wire::ConnectParameters& parameters) {
  const unsigned needed = parameters.cid == 0 ? parameters.cid_count : 1U;
  if (needed > options_.max_connections_per_path) return false;  // admission has the reason
  if (connections_ + needed <= options_.max_connections) return false;
  if (connections_ < options_.max_connections) return admission_.half_open() == 0;
  return !turn_away(admission_.turn_away_oldest(parameters.path_uuid));
}

/// False: there is none.
bool ServerDriver::turn_away(Admission::Place half_open) {
  const auto found = sessions_.find(half_open.session);
  if (found == sessions_.end()) return false;
  post_surely(found->second->reactor().io(),
              [host = found->second, path = half_open.path] { host->turn_away(path); });
  return true;
}

std::shared_ptr<SessionHost> ServerDriver::create_session(Admission::SessionId id,
                                                          const wire::ConnectParameters& parameters,
                                                          const Incoming& incoming) {
  Reactor& reactor = *reactors_[next_reactor_++ % reactors_.size()];
  ServerSessionOptions options = session_options(options_);
  options.extension = parameters.extension.present;
  options.features &= parameters.extension.features;
  options.uuid = parameters.session_uuid;
  options.session_epoch = random_();
  options.volatile_epoch = volatile_epoch_;
  options.server_id = id_;
  const ServerMachineOptions times{.handshake_timeout = options_.handshake_timeout,
                                   .linger = options_.session_linger};
  auto host = std::make_shared<SessionHost>(*this, id, reactor, options, times, handler_, incoming);
  sessions_.emplace(id, host);
  return host;
}

ServerPathOptions ServerDriver::path_options(const wire::ConnectParameters& parameters,
                                             const Incoming& incoming, unsigned entrance,
                                             bool proves) const {
  const bool linux_peer = !parameters.extension.present && incoming.may_be_linux;
  return {.cid_count = parameters.cid_count,
          .kind = parameters.kind,
          .uuid = parameters.path_uuid,
          .new_keys = options_.always_invalidate && incoming.may_be_linux &&
                      parameters.kind == wire::PathKind::requests,
          .access = entrances_[entrance].access,
          .entrance = entrance,
          .heartbeat_interval = linux_peer ? kLinuxHeartbeatInterval : options_.heartbeat_interval,
          .heartbeat_misses = linux_peer ? kLinuxHeartbeatMisses : options_.heartbeat_misses,
          .keys = proves ? tls::proof_keys(tls_keys_->current()) : nullptr};
}

// ---- For sessions, each on its reactor ---------------------------------------------------------

Admission::Admitted ServerDriver::admit(Place path, std::string_view name,
                                        std::optional<std::string_view> user) {
  const std::lock_guard lock{mutex_};
  if (stopping_) return {.why_not = "the server stops"};
  const auto admitted = admission_.admit(path.session, path.path, name, user);
  for (const Place spared : admitted.spares) {
    const auto found = sessions_.find(spared.session);
    if (found == sessions_.end()) continue;
    post_surely(found->second->reactor().io(),
                [host = found->second, path = spared.path] { host->spare(path); });
  }
  if (const auto found = sessions_.find(admitted.ends); found != sessions_.end()) {
    post_surely(found->second->reactor().io(), [idle = found->second] { idle->end_if_idle(); });
  }
  return admitted;
}

std::string ServerDriver::withdrawn(const Identity& user) {
  return tls_keys_ ? tls_keys_->current()->withdrawn(user) : "";
}

void ServerDriver::on_path_closing(Place path, bool over) {
  const std::lock_guard lock{mutex_};
  admission_.close_path(path.session, path.path);
  if (over) admission_.close(path.session);
}

void ServerDriver::on_path_shrunk(Place path, std::uint64_t held) {
  const std::lock_guard lock{mutex_};
  admission_.shrink_path(path.session, path.path, held);
}

void ServerDriver::on_path_silent(Place path, bool silent) {
  const std::lock_guard lock{mutex_};
  admission_.set_silent(path.session, path.path, silent);
}

void ServerDriver::on_starved() {
  ++memory_waits_;
  Instant told = told_of_memory_;
  const Instant now = rtrs::now();
  if (told != Instant::min() && now - told < kMemoryLine) return;
  if (!told_of_memory_.compare_exchange_strong(told, now)) return;
  tell_if_possible([&] {
    log(LogLevel::warning, "requests wait for memory: those under way use what is left of " +
                               std::to_string(options_.memory_limit) + " bytes (" +
                               options_.words->memory_limit + "); raise that if it happens often");
  });
}

void ServerDriver::on_idle(SessionId session) {
  const std::lock_guard lock{mutex_};
  admission_.set_idle(session);
}

/// From a later event: the host is still on the stack of this one.
void ServerDriver::on_path_gone(Place path, Reactor& reactor) {
  post_surely(reactor.io(), [this, path] { forget_path(path); });
}

void ServerDriver::on_session_gone(SessionId session, Reactor& reactor) {
  {
    const std::lock_guard lock{mutex_};
    admission_.close(session);
  }
  post_surely(reactor.io(), [this, session] { forget_session(session); });
}

void ServerDriver::on_auth_refused(AuthRefusal refusal, unsigned entrance) {
  asio::post(reactors_[0]->io(), [this, refusal = std::move(refusal), entrance]() mutable {
    refusal.listener = entrances_[entrance].acceptor->address();
    refusals_.audit(refusal, now());
  });
}

void ServerDriver::log_of_client(LogLevel level, const std::string& peer, const std::string& line) {
  if (!options_.log) return;
  options_.client_log->say(level, peer, line, std::chrono::steady_clock::now());
}

void ServerDriver::forget_path(Place path) {
  std::shared_ptr<SessionHost> host;
  {
    const std::lock_guard lock{mutex_};
    admission_.remove_path(path.session, path.path);
    const auto found = sessions_.find(path.session);
    if (found == sessions_.end()) return;
    host = found->second;
  }
  host->forget(path.path);
}

void ServerDriver::forget_session(Admission::SessionId id) {
  std::shared_ptr<SessionHost> host;  // destroyed outside the lock
  const std::lock_guard lock{mutex_};
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  host = std::move(found->second);
  past_repeats_ += host->repeats();
  sessions_.erase(found);
  admission_.remove(id);
  session_gone_.notify_all();
}

}  // namespace rtrs
