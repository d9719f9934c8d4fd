// SPDX-License-Identifier: BSD-3-Clause
// All keys together: whether they fit, and the configuration that they make.
#include <algorithm>
#include <utility>

#include "bridge/client/config.hpp"
#include "rdma/path_list.hpp"

namespace rnbd {
namespace {

using Error = tl::unexpected<std::string>;
using Done = tl::expected<void, std::string>;

/// FNV-1a, of 128 bits in two halves that start differently.
wire::Uuid digest_of(const std::string& text) {
  wire::Uuid uuid{};
  for (std::size_t half = 0; half < 2; ++half) {
    std::uint64_t hash = 0xcbf29ce484222325 + half;
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
    for (std::size_t i = 0; i < 8; ++i)
      uuid[half * 8 + i] = static_cast<std::uint8_t>(hash >> (8 * i));
  }
  return uuid;
}

/// The client keeps no state, so the list of servers identifies the group. Its servers refuse a
/// changed list, because a copy of other data must not become a member.
wire::Uuid group_of(const MirrorConfig& mirror, const std::string& device) {
  std::string text = device;
  for (const auto& member : mirror.members) text += "," + host_and_port(member.front());
  return digest_of(text);
}

}  // namespace

Done ConfigReader::collect_mirror(ClientConfig& config) const {
  if (mirror_.members.empty()) return {};
  const auto refuse = [](const char* key, const char* why) {
    return Error{std::string{key} + " does not go with a mirror: " + why};
  };
  if (!paths_.empty()) return refuse("path=", "write further paths behind each server, as a+a2");
  if (config.paths_of_server)
    return refuse("paths=auto", "write further paths behind each server, as a+a2");
  if (config.dynamic_export) return refuse("dynamic-export=", "name the device behind the servers");
  if (config.access) return refuse("access=", "its client always writes; leave it out");
  if (config.uuid != wire::Uuid{}) return refuse("uuid=", "each server's copy has its own");
  if (config.server_id != 0) return refuse("server-id=", "it has several servers");
  if (!config.session_name.empty())
    return refuse("session=", "each server gets a session with a name of its own; leave it out");
  if (!config.extensions)
    return refuse("extensions=false", "its servers must carry out writes once");
  if (config.passive) return refuse("mode=passive", "its copies would differ; leave it out");
  config.mirror = mirror_;
  if (config.mirror->group == wire::Uuid{})
    config.mirror->group = group_of(*config.mirror, config.device);
  config.paths = mirror_.members.front();
  return {};
}

/// The first path is that of the URI or server.
Done ConfigReader::collect_paths(ClientConfig& config) const {
  rtrs::TransportKind transport = transport_.value_or(rtrs::TransportKind::tcp);
  if (uri_) {
    transport = uri_->transport;
    config.paths.push_back(uri_->path());
  } else if (server_) {
    config.paths.push_back({transport, "", server_->host, server_->port});
  }
  for (const std::string& text : paths_) {
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

Done ConfigReader::collect_auth(ClientConfig& config) const {
  if (auth_keys_.none() && auth_keys_.username.empty()) return {};
  if (auth_keys_.none()) {
    return Error{"auth-username= names a key and no file of it; write auth-psk=FILE as well"};
  }
  if (config.tls != rtrs::TlsMode::off) {
    return Error{"TLS proves both ends already; leave auth-psk= out"};
  }
  rtrs::TlsKeys keys = auth_keys_;
  if (uri_ && !uri_->user.empty()) {
    if (!keys.username.empty() && keys.username != uri_->user) {
      return Error{"uri= and auth-username= name different users; name it once"};
    }
    keys.username = uri_->user;
  }
  config.auth_keys = std::move(keys);
  return {};
}

/// A word that is missing must not send in clear the data that were meant to be encrypted.
Done ConfigReader::collect_tls(ClientConfig& config) const {
  const bool by_uri = uri_ && uri_->tls;
  if (by_uri && tls_ == rtrs::TlsMode::off) {
    return Error{"tls=off contradicts the uri; write rnbd+tcp:// to send in clear"};
  }
  config.tls = by_uri ? rtrs::TlsMode::require : tls_.value_or(rtrs::TlsMode::off);
  rtrs::TlsKeys& keys = config.tls_keys;
  if (uri_ && !uri_->user.empty() && auth_keys_.none()) {
    if (!keys.username.empty() && keys.username != uri_->user) {
      return Error{"uri= and tls-username= name different users; name it once"};
    }
    keys.username = uri_->user;
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
  for (const auto& member : mirror_.members) all.insert(all.end(), member.begin(), member.end());
  for (const rtrs::PathAddress& path : all) {
    if (auto fits = rtrs::can_carry(path, config.tls); !fits) return Error{fits.error().text};
  }
  return {};
}

tl::expected<ClientConfig, std::string> ConfigReader::complete() const {
  ClientConfig config = config_;
  if (uri_) {
    if (server_) return Error{"give either uri= or server=, not both"};
    if (transport_ && *transport_ != uri_->transport) {
      return Error{"transport= contradicts uri=; leave transport= out"};
    }
    if (!uri_->device.empty() && !config.device.empty() && uri_->device != config.device) {
      return Error{"uri= names the device '" + uri_->device + "' and device= another one, '" +
                   config.device + "'; name it once"};
    }
    if (!uri_->device.empty()) config.device = uri_->device;
  }
  if (auto done = collect_mirror(config); !done) return Error{done.error()};
  if (auto done = config.mirror ? Done{} : collect_paths(config); !done) return Error{done.error()};
  if (auto done = collect_tls(config); !done) return Error{done.error()};
  if (auto done = collect_auth(config); !done) return Error{done.error()};
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
  if (config.passive && !config.extensions) {
    return Error{"mode=passive contradicts extensions=false, without which no server has bricks"};
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
