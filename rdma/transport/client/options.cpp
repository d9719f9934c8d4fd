// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/options.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <thread>

#include "rdma/path_list.hpp"

namespace rtrs {
namespace {

constexpr unsigned kMaxDefaultLanes = 4;

}  // namespace

ClientOptions with_defaults(ClientOptions options) {
  if (options.lanes == 0) {
    options.lanes = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxDefaultLanes);
  }
  if (!options.naming && !options.paths.empty()) options.naming = options.paths.front();
  return options;
}

ClientSessionOptions::Path session_path(const ClientOptions& options, const PathAddress& address) {
  const bool rdma = address.transport == TransportKind::rdma;
  const auto behind = static_cast<unsigned>(kMaxPreference - address.preference);
  return {2 * behind + (rdma ? 0U : 1U), rdma, !rdma, address == options.naming};
}

ClientSessionOptions session_options(const ClientOptions& options) {
  ClientSessionOptions session;
  session.path.session_name = options.session_name;
  session.path.io_connections = static_cast<std::uint16_t>(options.lanes);
  session.path.features = options.features;
  session.path.authenticates = options.auth_keys.has_value();
  session.path.heartbeat_interval = options.heartbeat_interval;
  session.path.heartbeat_misses = options.heartbeat_misses;
  session.path.words = options.words;
  for (const PathAddress& address : options.paths) {
    session.paths.push_back(session_path(options, address));
  }
  session.server_id = options.server_id;
  session.only_this_server = options.only_this_server;
  session.no_path_timeout = options.no_path_timeout;
  session.reconnect_min = options.reconnect_min;
  session.reconnect_max = options.reconnect_max;
  session.settle_time = options.settle_time;
  session.require_extension = options.require_extension;
  return session;
}

tl::expected<void, Failure> check(const ClientOptions& options) {
  const auto invalid = [](std::string text) { return tl::unexpected(Failure{EINVAL, text}); };
  if (!wire::is_valid_session_name(options.session_name)) {
    return invalid("session name '" + options.session_name +
                   "' is not allowed: use 1 to 254 printable characters without '/' and '.'");
  }
  if (options.paths.empty() || options.paths.size() > kMaxPaths) {
    return invalid("give 1 to " + std::to_string(kMaxPaths) + " paths to the server");
  }
  for (std::size_t i = 1; i < options.paths.size(); ++i) {
    const auto end = options.paths.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(options.paths.begin(), end, *end) != end) {
      return invalid("the path to " + end->host + " is given twice: name each only once");
    }
  }
  if (options.tls == TlsMode::on) return invalid("a client uses TLS, or it does not: choose");
  for (const PathAddress& path : options.paths) {
    if (auto fits = can_carry(path, options.tls); !fits) return fits;
    if (std::abs(path.preference) > kMaxPreference) {
      return invalid("the preference of the path to " + path.host + " is out of range: choose -" +
                     std::to_string(kMaxPreference) + " to " + std::to_string(kMaxPreference));
    }
  }
  if (options.auth_keys && options.tls != TlsMode::off) {
    return invalid("TLS proves both ends already: leave the key of the proof out");
  }
  if (options.no_path_error <= 0) return invalid("the error while no path works must be an errno");
  if (options.lanes >= wire::kMaxConnections) return invalid("too many lanes: use fewer than 4096");
  if (options.spin < Duration::zero() || options.spin > kMaxSpin) {
    return invalid("spinning for longer than a millisecond only wastes CPU: choose 0 to 1ms");
  }
  if (options.heartbeat_interval <= Duration::zero()) {
    return invalid("the heartbeat interval must be longer than zero");
  }
  if (options.reconnect_min <= Duration::zero() || options.reconnect_max < options.reconnect_min) {
    return invalid(
        "the pause between attempts to reconnect must be longer than zero, and its "
        "maximum not shorter");
  }
  return {};
}

ConnectOptions connect_options(const ClientOptions& options, const PathAddress& address,
                               Duration patience) {
  const bool encrypts = options.tls != TlsMode::off;
  return {.address = address,
          .addresses = {},
          .header_digest = options.header_digest,
          .data_digest = options.data_digest,
          .patience = patience,
          .tls_keys = encrypts ? std::optional{options.tls_keys} : std::nullopt,
          .tls = nullptr,
          .auth_keys = options.auth_keys,
          .log = options.log,
          .words = options.words};
}

}  // namespace rtrs
