// SPDX-License-Identifier: BSD-3-Clause
// The entrances of clients: the addresses that the machine has when the server starts, and those
// that come later.
#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>
#include <chrono>
#include <iterator>
#include <utility>

#include "rdma/transport/await.hpp"
#include "rdma/transport/clock.hpp"
#include "rdma/transport/factory.hpp"
#include "rdma/transport/server/driver.hpp"
#include "rdma/transport/server/options.hpp"
#include "rdma/transport/tls/credentials.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;
/// Between two attempts to listen at an address that the machine lacks.
constexpr auto kAgain = std::chrono::seconds{1};
/// For a name server, so that other addresses are tried meanwhile; the search goes on.
constexpr auto kLookupPatience = std::chrono::milliseconds{200};

/// The machine does not have it: the address, the family, the device.
bool is_absent(int error) {
  return error == EADDRNOTAVAIL || error == EAFNOSUPPORT || error == ENODEV;
}

/// The address, or the means to find it, may appear while the configuration stays the same.
bool may_come(int error) {
  return is_absent(error) || error == ENOENT || error == ENXIO || error == EHOSTUNREACH ||
         error == ETIMEDOUT || error == ENETDOWN || error == ENETUNREACH;
}

/// A name's addresses, for repeated look-ups.
tl::expected<HostLookup::Addresses, Failure> find_listener(const std::string& name) {
  const auto texts = addresses_of_listener(name);
  if (!texts) return tl::unexpected(texts.error());
  HostLookup::Addresses addresses;
  for (const std::string& text : *texts) {
    boost::system::error_code wrong;
    const auto address = asio::ip::make_address(text, wrong);
    if (!wrong) addresses.push_back(address);
  }
  return addresses;
}

bool is_everywhere(const std::string& host) { return host.empty() || host == "*"; }

std::string text_of_ip(const asio::ip::address& address) { return address.to_string(); }

std::string text_of(const ListenAddress& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  const std::string host = is_everywhere(address.host) ? "*" : address.host;
  return std::string{address.transport == TransportKind::rdma ? "rdma:" : "tcp:"} +
         (brackets ? '[' + host + ']' : host) + ':' + std::to_string(address.port);
}

}  // namespace

TlsMode ServerDriver::tls_mode(const ListenAddress& address) const {
  if (address.transport == TransportKind::rdma) return TlsMode::off;
  return address.tls.value_or(options_.tls);
}

/// Public-key work of TLS has two threads, so that clients that only knock hold up no established
/// session.
tl::expected<void, Failure> ServerDriver::prepare_tls() {
  constexpr unsigned kWorkers = 2;
  const bool wanted = (!options_.listen_fds.empty() && options_.tls != TlsMode::off) ||
                      std::ranges::any_of(options_.listen, [this](const ListenAddress& address) {
                        return tls_mode(address) != TlsMode::off;
                      });
  const bool proofs = (!options_.listen_fds.empty() && options_.auth == AuthMode::psk) ||
                      std::ranges::any_of(options_.listen, [this](const ListenAddress& address) {
                        return auth_mode(address) == AuthMode::psk;
                      });
  if (!wanted && !proofs) return {};
  auto keys = tls::KeyStore::open(options_.tls_keys, options_.log, *options_.words);
  if (!keys) return tl::unexpected(Failure{ENOKEY, keys.error()});
  tls_keys_ = *std::move(keys);
  if (wanted) tls_workers_.emplace(kWorkers);
  return {};
}

AcceptorOptions ServerDriver::entrance_options(TlsMode tls) {
  AcceptorOptions settings = acceptor_options(options_);
  settings.owner = this;
  if (tls != TlsMode::off) {
    settings.tls = {.mode = tls, .keys = tls_keys_, .workers = tls_workers_->get_executor()};
  }
  return settings;
}

unsigned ServerDriver::room() const {
  return options_.max_connections - std::min(options_.max_connections, connections_.load());
}

void ServerDriver::on_refused(LogLevel level, const std::string& peer, const std::string& why) {
  refusals_.say(level, peer, why, now());
}

void ServerDriver::on_unproven(const AuthRefusal& refusal) { refusals_.audit(refusal, now()); }

tl::expected<void, Failure> ServerDriver::open_entrances() {
  if (auto ok = prepare_tls(); !ok) return ok;
  for (const int descriptor : options_.listen_fds) {
    auto acceptor = adopt(*reactors_[0], descriptor, entrance_options(options_.tls));
    if (!acceptor) return tl::unexpected(acceptor.error());
    entrances_.push_back(
        {std::move(*acceptor), wire::PathAccess::optimized, options_.tls, options_.auth});
  }
  for (const ListenAddress& address : options_.listen) {
    const auto hosts = addresses_of_listener(address.host);
    auto opened = hosts ? open_entrances_at(address, *hosts) : tl::unexpected(hosts.error());
    if (opened) {
      std::ranges::move(*opened, std::back_inserter(entrances_));
      continue;
    }
    const Failure& failure = opened.error();
    if (!may_come(failure.error)) return tl::unexpected(failure);
    log(LogLevel::warning, failure.text + "; it is tried again every second");
    const bool is_name = !hosts || hosts->front() != address.host;
    late_.push_back(
        {address, failure.text,
         is_name ? std::make_shared<HostLookup>(address.host, find_listener) : nullptr});
  }
  return {};
}

/// All addresses of one --listen, or none.
tl::expected<ServerDriver::Entrances, Failure> ServerDriver::open_entrances_at(
    const ListenAddress& address, const std::vector<std::string>& hosts) {
  Entrances opened;
  const TlsMode tls = tls_mode(address);
  tl::expected<std::unique_ptr<Acceptor>, Failure> acceptor = tl::unexpected(
      Failure{ENXIO, "cannot listen on " + text_of(address) + ": the name has no address"});
  for (const std::string& host : hosts) {
    ListenAddress numeric = address;
    numeric.host = host;
    acceptor = listen(*reactors_[0], numeric, entrance_options(tls));
    if (!acceptor && is_everywhere(host) && acceptor.error().error == EAFNOSUPPORT) {
      numeric.host = "0.0.0.0";  // a kernel without IPv6
      acceptor = listen(*reactors_[0], numeric, entrance_options(tls));
    }
    if (acceptor) {
      opened.push_back(
          {std::move(*acceptor), address.access, tls, auth_mode(address), address.from});
      continue;
    }
    // Half of a name's addresses would be a surprise; a machine without IPv6 is none.
    if (hosts.size() == 1 || !is_absent(acceptor.error().error)) break;
  }
  if (opened.empty() || (!acceptor && !is_absent(acceptor.error().error))) {
    return tl::unexpected(acceptor.error());
  }
  return opened;
}

void ServerDriver::start_entrance(unsigned entrance) {
  {
    const std::lock_guard lock{mutex_};
    admission_.set_access(entrance, entrances_[entrance].access);
  }
  entrances_[entrance].acceptor->start([this, entrance](std::unique_ptr<Incoming> incoming) {
    welcome(std::move(incoming), entrance);
  });
}

// ---- Later, on reactor 0 -----------------------------------------------------------------------

asio::awaitable<void> ServerDriver::open_late_entrances() {
  asio::steady_timer pause{reactors_[0]->io()};
  while (!late_.empty()) {
    pause.expires_after(kAgain);
    co_await pause.async_wait(kAwait);
    for (std::size_t n = 0; n < late_.size();) {
      if (!co_await try_late(late_[n])) {
        ++n;
        continue;
      }
      {
        const std::lock_guard lock{mutex_};
        if (stopping_) co_return;
        late_.erase(late_.begin() + static_cast<std::ptrdiff_t>(n));
      }
      if (options_.on_listener) options_.on_listener();
    }
  }
}

std::string ServerDriver::ending_certificates() const {
  return tls_keys_ ? tls_keys_->ending() : "";
}

/// Reminds of certificates that end, also where nobody comes.
asio::awaitable<void> ServerDriver::look_after_keys() {
  asio::steady_timer pause{reactors_[0]->io()};
  for (;;) {
    pause.expires_after(std::chrono::hours{1});
    auto [failed] = co_await pause.async_wait(kAwait);
    if (failed) co_return;
    tls_keys_->current();
  }
}

/// True: nothing of it is left to wait for.
asio::awaitable<bool> ServerDriver::try_late(LateEntrance& late) {
  std::vector<std::string> hosts{late.address.host};
  tl::expected<Entrances, Failure> opened;
  if (late.lookup != nullptr) {
    auto found = co_await late.lookup->find(kLookupPatience);
    hosts.clear();
    if (found) std::ranges::transform(*found, std::back_inserter(hosts), text_of_ip);
    if (!found) opened = tl::unexpected(found.error());
  }
  if (opened) opened = open_entrances_at(late.address, hosts);
  if (opened) co_return take_in(std::move(*opened));
  // Any error is only logged: users of the other addresses gain nothing by an end of the server.
  bool news = false;
  {
    const std::lock_guard lock{mutex_};
    news = std::exchange(late.why, opened.error().text) != opened.error().text;
  }
  if (news) log(LogLevel::warning, opened.error().text + "; it is tried again every second");
  if (news && options_.on_listener) options_.on_listener();
  co_return false;
}

bool ServerDriver::take_in(Entrances entrances) {
  for (Entrance& entrance : entrances) {
    const std::string address = entrance.acceptor->address();
    unsigned place = 0;
    {
      const std::lock_guard lock{mutex_};
      if (stopping_) return true;
      place = static_cast<unsigned>(entrances_.size());
      entrances_.push_back(std::move(entrance));
    }
    start_entrance(place);
    log(LogLevel::info, "listening on " + address + " now");
  }
  return true;
}

std::vector<ListenerStatus> ServerDriver::listeners() const {
  const std::lock_guard lock{mutex_};
  std::vector<ListenerStatus> all;
  for (const Entrance& entrance : entrances_) {
    all.push_back({entrance.acceptor->address(), entrance.access, entrance.tls, entrance.auth, ""});
  }
  for (const LateEntrance& late : late_) {
    all.push_back({text_of(late.address), late.address.access, tls_mode(late.address),
                   auth_mode(late.address), late.why});
  }
  return all;
}

}  // namespace rtrs
