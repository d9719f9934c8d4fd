// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/path_driver.hpp"

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "rdma/transport/await.hpp"
#include "rdma/transport/clock.hpp"
#include "rdma/transport/sure.hpp"
#include "rdma/transport/system_failure.hpp"
#include "rdma/transport/tls/credentials.hpp"
#include "rdma/transport/tls/proof_keys.hpp"
#include "rdma/wire/auth.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;

}  // namespace

PathDriver::PathDriver(Reactor& reactor, ClientPath& core, ConnectOptions options,
                       std::shared_ptr<HostLookup> lookup, std::string session_name,
                       Duration lookup_patience, PathDriverOwner& owner, PathLife life)
    : reactor_{reactor},
      core_{core},
      options_{std::move(options)},
      lookup_{std::move(lookup)},
      server_{name_of(options_.address)},
      session_name_{std::move(session_name)},
      lookup_patience_{lookup_patience},
      owner_{owner},
      life_{life},
      deadline_{reactor.alarms()},
      heartbeat_{reactor.alarms()} {}

// ---- Connecting --------------------------------------------------------------------------------

void PathDriver::start() {
  // The handler makes the coroutine begin at once. Elsewhere that would be put off, and a coroutine
  // that is cancelled before its first wait throws out of the event loop.
  asio::post(reactor_.io(), [self = shared_from_this()] {
    if (!self->closed_) self->spawn();
  });
}

void PathDriver::spawn() {
  // Behind the coroutine: close() cancels it, and Asio throws out of the event loop when that
  // happens inside a coroutine that never had to wait.
  const auto ended = [self = shared_from_this()](const std::exception_ptr& exception,
                                                 const tl::expected<void, Failure>& result) {
    if (self->closed_) return;
    try {
      if (exception) std::rethrow_exception(exception);
      if (!result) return self->fail(result.error());
      self->exchange_infos();
    } catch (const std::exception& error) {
      self->fail(failure_of(error));
    }
  };
  asio::co_spawn(reactor_.io(), connect_all(),
                 asio::bind_cancellation_slot(attempt_.slot(), ended));
}

void PathDriver::restart_deadline() {
  deadline_.set(options_.patience, [this] {
    fail({ETIMEDOUT, "timed out while connecting to " + server_ +
                         " (is the address right, does a firewall drop packets, does the "
                         "server hang?)"});
  });
}

std::string PathDriver::security() const {
  if (!control_) return "";
  if (core_.authenticates()) return "proof " + proven_as_;
  const Identity* const peer = control_->peer();
  return describe(peer != nullptr ? *peer : Identity{});
}

/// Anew for every generation of the path, so that keys can be exchanged meanwhile.
tl::expected<void, Failure> PathDriver::load_keys() {
  const auto& names = options_.tls_keys ? options_.tls_keys : options_.auth_keys;
  if (!names) return {};
  auto loaded = tls::Credentials::load(*names, tls::Role::client, *options_.words);
  if (!loaded) return tl::unexpected(Failure{ENOKEY, loaded.error()});
  if (!options_.tls_keys && (*loaded)->key_name().size() > wire::kMaxAuthKeyName) {
    return tl::unexpected(
        Failure{ENOKEY, "the name of a key that is proven without TLS has at most " +
                            std::to_string(wire::kMaxAuthKeyName) + " characters; '" +
                            (*loaded)->key_name() + "' is longer"});
  }
  options_.tls = *std::move(loaded);
  return {};
}

asio::awaitable<tl::expected<void, Failure>> PathDriver::connect_all() {
  if (auto loaded = load_keys(); !loaded) co_return loaded;
  // Keys are for TLS or for proofs, and never for both.
  const auto proving = options_.tls_keys ? nullptr : std::exchange(options_.tls, nullptr);
  auto addresses = co_await lookup_->find(lookup_patience_);
  if (closed_) co_return tl::unexpected(Failure{ECANCELED, "given up"});
  if (!addresses) co_return tl::unexpected(addresses.error());
  options_.addresses = std::move(*addresses);
  restart_deadline();
  for (std::uint16_t cid = 0; cid < core_.connection_count(); ++cid) {
    auto opened = co_await open_connection(options_, core_.connect_request(cid),
                                           core_.queue_sizes(cid), context_);
    if (closed_) {
      context_.reset();  // it may be from after close(), and goes before its connection
      co_return tl::unexpected(Failure{ECANCELED, "given up"});
    }
    if (!opened) co_return tl::unexpected(opened.error());
    connections_.push_back(std::move(opened->connection));  // close() ends them in order
    if (const Complaint complaint = core_.on_answer(cid, opened->record)) {
      co_return tl::unexpected(refusal(complaint));
    }
    if (proving) start_proof(cid, proving);
    restart_deadline();
  }
  options_.tls.reset();
  if (proving) {
    if (auto proven = co_await prove_all(); !proven) co_return proven;
  }
  co_return reserve_windows();
}

/// The challenge comes while the other connections are made.
void PathDriver::start_proof(std::uint16_t cid,
                             const std::shared_ptr<const tls::Credentials>& keys) {
  proven_as_ = tls::identity_of(keys->key_name());
  core_.start_proof(cid, *connections_[cid],
                    {keys->key_name(), keys->find(keys->key_name())->bytes()}, tls::random_nonce());
}

/// Keeps the connections meanwhile: nobody may close them while they are waited for.
asio::awaitable<tl::expected<void, Failure>> PathDriver::prove_all() {
  auto connections = std::exchange(connections_, {});
  tl::expected<void, Failure> proven;
  for (std::uint16_t cid = 0; proven && cid < connections.size(); ++cid) {
    proven = co_await prove(*connections[cid], cid);
  }
  if (closed_) {
    context_.reset();
    co_return tl::unexpected(Failure{ECANCELED, "given up"});
  }
  connections_ = std::move(connections);
  co_return proven;
}

asio::awaitable<tl::expected<void, Failure>> PathDriver::prove(Connection& connection,
                                                               std::uint16_t cid) {
  using Status = Connection::Status;
  asio::posix::stream_descriptor waiting{reactor_.io(), connection.descriptor()};
  const auto release = [](asio::posix::stream_descriptor* one) { one->release(); };
  const std::unique_ptr<asio::posix::stream_descriptor, decltype(release)> guard{&waiting, release};
  auth::ClientProof& proof = core_.proofs().at(cid);
  for (;;) {
    const Status status = connection.progress(proof);
    if (proof.proven()) co_return tl::expected<void, Failure>{};
    if (status == Status::broken || status == Status::closed) {
      co_return tl::unexpected(proof_failure(connection, proof));
    }
    auto [ended] = co_await waiting.async_wait(asio::posix::stream_descriptor::wait_read, kAwait);
    if (ended || closed_) co_return tl::unexpected(Failure{ECANCELED, "given up"});
  }
}

Failure PathDriver::proof_failure(const Connection& connection,
                                  const auth::ClientProof& proof) const {
  std::string text = server_ + ": ";
  if (proof.why_not() != nullptr) {
    text += proof.why_not();
  } else {
    text += connection.failure() + ", while both prove that they have the key";
  }
  text += " (key '" + proof.key_name() + "')";
  return {proof.refusal() != 0 ? proof.refusal() : EACCES, std::move(text)};
}

tl::expected<void, Failure> PathDriver::reserve_windows() {
  if (core_.is_memory()) return reserve_memory_windows();
  const auto slots = core_.slots_per_lane();
  for (std::uint16_t cid = 0; cid < core_.connection_count(); ++cid) {
    const unsigned windows = cid == 0 ? core_.control_slots() : slots[cid];
    auto ready = connections_[cid]->reserve_windows(windows, core_.accepted().max_io_size);
    if (!ready) return ready;
  }
  return {};
}

tl::expected<void, Failure> PathDriver::reserve_memory_windows() {
  for (std::uint16_t cid = 1; cid < core_.connection_count(); ++cid) {
    auto ready = connections_[cid]->reserve_windows(kMemoryWindows, kMemoryWindow);
    if (!ready) return ready;
  }
  return {};
}

Failure PathDriver::refusal(Complaint complaint) const {
  const int error = core_.refusal();
  if (core_.foreign()) {
    const ServerId is = core_.accepted().extension.server_id;
    return {ESTALE, server_ + ": " + another_server(is, core_.required_server())};
  }
  if (error == 0) return {EPROTO, server_ + ": " + complaint};
  std::string text = "the server " + server_ + " refused the session: " + std::strerror(error);
  switch (error) {
    case ENOMEM:
      text +=
          std::string{
              " (it is full: too many sessions or no memory for more. Try again later, or "} +
          options_.words->full_server + ")";
      break;
    case EINVAL:
      text += " (probably more connections than it allows: use fewer lanes)";
      break;
    case ENXIO:
      text +=
          " (it does not know this session: it is another server than that of the other paths, "
          "or was restarted a moment ago)";
      break;
    case EPROTONOSUPPORT:
      text += std::string{" (it wants TLS: "} + options_.words->use_tls + ")";
      break;
    case EACCES:
      text += std::string{" (it wants a proof: "} + options_.words->use_proof +
              "; or it takes nobody from here; or the session belongs to another user, or to one "
              "without TLS)";
      break;
    case ENOTSUP:
      text += " (its RDMA device cannot do what the server was told to do: its log says what)";
      break;
    default:
      break;
  }
  return {error, std::move(text)};
}

// ---- Connection 0 ------------------------------------------------------------------------------

void PathDriver::exchange_infos() {
  control_ = std::move(connections_[0]);
  control_readiness_ = std::make_unique<Readiness>(reactor_.io(), reactor_.hang_ups(),
                                                   control_->descriptor(), *this);
  core_.start_exchange(*control_);
  control_readiness_->wait_to_read();
}

void PathDriver::on_readable() {
  const auto self = shared_from_this();  // the owner may let go of it
  if (!closed_) progress();
}

void PathDriver::on_writable() { flush(); }

void PathDriver::progress_later() {
  asio::post(reactor_.io(), [self = shared_from_this()] {
    if (!self->closed_) self->progress();
  });
}

void PathDriver::progress() {
  using Status = Connection::Status;
  const Status status = control_->progress(core_);
  if (core_.state() == ClientPathState::connected && !ready_) is_ready();
  if (closed_) return;
  if (core_.pulse().measure(now())) owner_.on_latency(life_, core_.pulse().latency());
  if (core_.access_noticed()) {
    owner_.on_access(life_);  // and acknowledges it
    if (closed_) return;
  }
  if (core_.recalled()) {
    owner_.on_recall();
    core_.acknowledge_recall();
  }
  if (status == Status::broken || status == Status::closed) {
    if (core_.refusal() != 0) return fail(refusal(nullptr));
    std::string text = server_ + ": " + control_->failure();
    if (!ready_) text += " (session name '" + session_name_ + "' may be in use at the server)";
    return fail({EIO, std::move(text)});
  }
  flush();
  owner_.flush_all();
  if (closed_) return;
  // The last words of a peer that has closed are read.
  if (status == Status::more || control_readiness_->hung_up()) return progress_later();
  control_readiness_->wait_to_read();
}

void PathDriver::flush() {
  if (closed_ || !control_) return;
  control_->flush();
  if (control_->wants_to_write()) control_readiness_->wait_to_write();
}

void PathDriver::is_ready() {
  ready_ = true;
  deadline_.cancel();
  core_.pulse().start(now());
  schedule_tick();
  owner_.on_ready(life_);
}

// ---- Life and death ----------------------------------------------------------------------------

void PathDriver::schedule_tick() {
  heartbeat_.set(core_.pulse().next_deadline() - now(), [this] { tick(); });
}

void PathDriver::tick() {
  const auto self = shared_from_this();  // the owner may let go of it
  // Alarms go off before events are handled: an answer may be there that nobody has read.
  if (!core_.pulse().heard()) progress();
  if (closed_) return;
  const bool traffic = owner_.on_heartbeat(life_);
  if (closed_) return;
  if (core_.on_tick(now(), traffic) == Heartbeat::Verdict::dead) {
    return fail({EIO, server_ + " does not answer heartbeats"});
  }
  flush();
  schedule_tick();
}

void PathDriver::fail(const Failure& failure) {
  if (closed_) return;
  const auto self = shared_from_this();  // the owner may let go of it
  close();
  owner_.on_lost(life_, failure);
}

void PathDriver::close() {
  if (std::exchange(closed_, true)) return;
  deadline_.cancel();
  heartbeat_.cancel();
  context_.reset();  // the last connection takes the path's domain with it
  if (control_readiness_) control_readiness_->close();
  if (control_) control_->close();
  connections_.clear();
  // The attempt ends at its present wait. An alarm is no event of Asio's, which would put off the
  // rest of this until the signal is gone.
  surely([this] {
    asio::dispatch(reactor_.io(), [self = shared_from_this()] {
      self->attempt_.emit(asio::cancellation_type::terminal);
    });
  });
}

}  // namespace rtrs
