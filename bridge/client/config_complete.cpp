// SPDX-License-Identifier: BSD-3-Clause
// All keys together: whether they fit, and the configuration that they make.
#include <algorithm>
#include <utility>

#include "bridge/client/annex.hpp"
#include "bridge/client/config.hpp"
#include "rdma/path_list.hpp"

namespace rnbd {
namespace {

using Error = tl::unexpected<std::string>;
using Done = tl::expected<void, std::string>;

/// The first path is that of the URI or server.
Done collect_paths(const ClientDraft& draft, ClientConfig& config) {
  if (!config.servers.empty()) {
    config.paths = config.servers.front();
    return {};
  }
  rtrs::TransportKind transport = draft.transport.value_or(rtrs::TransportKind::tcp);
  if (draft.uri) {
    transport = draft.uri->transport;
    config.paths.push_back(draft.uri->path());
  } else if (draft.server) {
    config.paths.push_back({transport, "", draft.server->host, draft.server->port});
  }
  for (const std::string& text : draft.paths) {
    rtrs::PathAddress path = *parse_path(text, transport);
    if (std::count(config.paths.begin(), config.paths.end(), path) != 0) {
      return Error{"path=: '" + text + "' is there already; leave it out"};
    }
    // From here to where another one leads without saying from where: that one is meant.
    rtrs::PathAddress anywhere = path;
    anywhere.source.clear();
    const auto found = std::find(config.paths.begin(), config.paths.end(), anywhere);
    if (found != config.paths.end()) {
      *found = path;
    } else {
      config.paths.push_back(path);
    }
  }
  if (config.paths.empty()) {
    return Error{"no server is named; write uri=rnbd+tcp://HOST[:PORT]/DEVICE"};
  }
  if (config.paths.size() > kMaxPaths) {
    return Error{"a session has at most " + std::to_string(kMaxPaths) + " paths, not " +
                 std::to_string(config.paths.size()) + "; leave some path= out"};
  }
  return {};
}

Done collect_auth(const ClientDraft& draft, ClientConfig& config) {
  if (draft.auth_keys.none() && draft.auth_keys.username.empty()) return {};
  if (draft.auth_keys.none()) {
    return Error{"auth-username= names a key and no file of it; write auth-psk=FILE as well"};
  }
  if (config.tls != rtrs::TlsMode::off) {
    return Error{"TLS proves both ends already; leave auth-psk= out"};
  }
  rtrs::TlsKeys keys = draft.auth_keys;
  if (draft.uri && !draft.uri->user.empty()) {
    if (!keys.username.empty() && keys.username != draft.uri->user) {
      return Error{"uri= and auth-username= name different users; name it once"};
    }
    keys.username = draft.uri->user;
  }
  config.auth_keys = std::move(keys);
  return {};
}

/// A word that is missing must not send in clear the data that were meant to be encrypted.
Done collect_tls(const ClientDraft& draft, ClientConfig& config) {
  const bool by_uri = draft.uri && draft.uri->tls;
  if (by_uri && draft.tls == rtrs::TlsMode::off) {
    return Error{"tls=off contradicts the uri; write rnbd+tcp:// to send in clear"};
  }
  config.tls = by_uri ? rtrs::TlsMode::require : draft.tls.value_or(rtrs::TlsMode::off);
  rtrs::TlsKeys& keys = config.tls_keys;
  if (draft.uri && !draft.uri->user.empty() && draft.auth_keys.none()) {
    if (!keys.username.empty() && keys.username != draft.uri->user) {
      return Error{"uri= and tls-username= name different users; name it once"};
    }
    keys.username = draft.uri->user;
  }
  if (config.tls == rtrs::TlsMode::off) {
    if (keys.none() && keys.username.empty()) return {};
    return Error{
        "keys of TLS are named, but not that it is used; write rnbds+tcp:// in the uri, or "
        "tls=require"};
  }
  if (keys.none()) {
    return Error{
        "TLS needs keys; write tls-psk=FILE or tls-certificates=DIRECTORY, or behind the "
        "uri ?tls-psk-file=FILE"};
  }
  if (!keys.psk.empty() && !keys.certificates.empty()) {
    return Error{"tls-psk= and tls-certificates= are two ways to prove the same; leave one out"};
  }
  if (!keys.username.empty() && keys.psk.empty()) {
    return Error{"a user belongs to a shared key (tls-psk=); a certificate has its own name"};
  }
  std::vector<rtrs::PathAddress> all = config.paths;
  for (const auto& server : config.servers) all.insert(all.end(), server.begin(), server.end());
  for (const rtrs::PathAddress& path : all) {
    if (auto fits = rtrs::can_carry(path, config.tls); !fits) return Error{fits.error().text};
  }
  return {};
}

}  // namespace

tl::expected<ClientConfig, std::string> ConfigReader::complete() const {
  ClientDraft draft = draft_;
  ClientConfig& config = draft.config;
  if (draft.uri) {
    if (draft.server) return Error{"give either uri= or server=, not both"};
    if (draft.transport && *draft.transport != draft.uri->transport) {
      return Error{"transport= contradicts uri=; leave transport= out"};
    }
    if (!draft.uri->device.empty() && !config.device.empty() &&
        draft.uri->device != config.device) {
      return Error{"uri= names the device '" + draft.uri->device + "' and device= another one, '" +
                   config.device + "'; name it once"};
    }
    if (!draft.uri->device.empty()) config.device = draft.uri->device;
  }
  for (const ClientAnnex* annex : client_annexes()) {
    if (annex->complete == nullptr) continue;
    if (const std::string wrong = annex->complete(draft); !wrong.empty()) return Error{wrong};
  }
  for (const auto collect : {collect_paths, collect_tls, collect_auth})
    if (auto done = collect(draft, config); !done) return Error{done.error()};
  if (config.device.empty() && !config.dynamic_export) {
    return Error{
        "no device is named; append it to the URI, write device=NAME, or let clients choose with "
        "dynamic-export=true"};
  }
  if (config.uuid != wire::Uuid{} && config.dynamic_export) {
    return Error{
        "uuid= is that of one disk; name its device as well, and leave dynamic-export= out"};
  }
  if (config.uuid != wire::Uuid{} && !config.extensions) {
    return Error{"uuid= contradicts extensions=false, without which no server tells UUIDs"};
  }
  if (config.paths_of_server && !config.extensions) {
    return Error{
        "paths=auto contradicts extensions=false, without which no server tells its addresses"};
  }
  if (config.require_extension && !config.extensions) {
    return Error{"require-ext=true contradicts extensions=false; leave one of them out"};
  }
  if (config.reconnect_min > config.reconnect_max) {
    return Error{"reconnect-min= is longer than reconnect-max= (default 2s); change one of them"};
  }
  return config;
}

}  // namespace rnbd
