// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <random>
#include <sstream>

#include "bridge/client/key_file.hpp"
#include "bridge/control/unix_socket.hpp"
#include "bridge/protocol/closest.hpp"
#include "bridge/protocol/uuid.hpp"
#include "rdma/duration.hpp"
#include "rdma/path_list.hpp"
#include "rdma/wire/messages.hpp"

namespace rnbd {
namespace {

using Error = tl::unexpected<std::string>;
using Done = tl::expected<void, std::string>;

std::string in_quotes(std::string_view text) { return "'" + std::string{text} + "'"; }

/// One of a few words.
template <class T, std::size_t N>
tl::expected<T, std::string> choose(std::string_view value,
                                    const std::pair<std::string_view, T> (&words)[N]) {
  std::string list;
  for (const auto& [word, meaning] : words) {
    if (word == value) return meaning;
    list += (list.empty() ? "" : ", ") + std::string{word};
  }
  return Error{in_quotes(value) + " is none of " + list};
}

template <class T>
Done store(T& to, tl::expected<T, std::string> value) {
  if (!value) return Error{value.error()};
  to = *std::move(value);
  return {};
}

tl::expected<bool, std::string> parse_bool(std::string_view value) {
  return choose<bool>(value, {{"true", true},
                              {"false", false},
                              {"yes", true},
                              {"no", false},
                              {"on", true},
                              {"off", false},
                              {"1", true},
                              {"0", false}});
}

tl::expected<unsigned, std::string> parse_number(std::string_view value, unsigned least,
                                                 unsigned most) {
  unsigned number = 0;
  auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size() || number < least ||
      number > most) {
    return Error{in_quotes(value) + " is not a number from " + std::to_string(least) + " to " +
                 std::to_string(most)};
  }
  return number;
}

constexpr rtrs::DurationRange kConnectTimeouts{.least = std::chrono::milliseconds{1}};
constexpr rtrs::DurationRange kHeartbeats{.least = std::chrono::milliseconds{10},
                                          .most = std::chrono::minutes{1}};
constexpr rtrs::DurationRange kReconnectPauses{.least = std::chrono::milliseconds{1},
                                               .most = std::chrono::minutes{5}};
constexpr rtrs::DurationRange kWaits{};  ///< 0 has a meaning

tl::expected<rtrs::Duration, std::string> parse_spin(std::string_view value) {
  auto duration = rtrs::parse_duration(value);
  if (duration && *duration > rtrs::kMaxSpin) {
    return Error{in_quotes(value) + " is longer than 1ms; write a time such as 50us, or 0"};
  }
  return duration;
}

tl::expected<std::string, std::string> parse_session_name(std::string_view value) {
  if (rtrs::wire::is_valid_session_name(value)) return std::string{value};
  return Error{in_quotes(value) +
               " is not a session name; write 1 to 254 printable characters without '/' and '.'"};
}

tl::expected<std::string, std::string> parse_device(std::string_view value) {
  std::string complaint = complaint_about_device_name(value);
  if (!complaint.empty()) return Error{complaint};
  return std::string{value};
}

Done set_digest(ClientConfig& config, std::string_view value) {
  auto level = choose<int>(value, {{"all", 2}, {"header", 1}, {"none", 0}});
  if (!level) return Error{level.error()};
  config.digest = *level;
  return {};
}

tl::expected<Use, std::string> parse_use(std::string_view value) {
  return choose<Use>(value, {{"auto", Use::automatic}, {"on", Use::always}, {"off", Use::never}});
}

/// Those that NBD can carry, and that mean something else than a wrong request.
tl::expected<int, std::string> parse_error(std::string_view value) {
  return choose<int>(value, {{"EIO", EIO}, {"ENOSPC", ENOSPC}, {"ESHUTDOWN", ESHUTDOWN}});
}

constexpr std::pair<std::string_view, rtrs::PathPolicy> kPolicies[] = {
    {"round-robin", rtrs::PathPolicy::round_robin},
    {"min-inflight", rtrs::PathPolicy::min_inflight},
    {"min-latency", rtrs::PathPolicy::min_latency}};

/// Also behind the '?' of a URI, where tls-psk has the name that libnbd gives it.
std::optional<Done> set_tls_key(rtrs::TlsKeys& keys, std::string_view key, std::string_view value) {
  if (key == "tls-psk") return store(keys.psk, parse_key_file(value));
  if (key == "tls-certificates") return store(keys.certificates, parse_key_file(value));
  if (key == "tls-verify") return store(keys.verify_peer, parse_bool(value));
  if (key != "tls-username") return std::nullopt;
  if (value.empty()) return Done{Error{"the name is missing"}};
  keys.username = value;
  return Done{};
}

/// The text as it is, or in quotes where a shell would take it for something else.
std::string word_of_shell(const std::string& text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+,-@%=:";
  if (text.find_first_not_of(kPlain) == std::string::npos) return text;
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string{"'\\''"} : std::string{c};
  return quoted + "'";
}

tl::expected<rtrs::TlsMode, std::string> parse_tls(std::string_view value) {
  if (value == "on") {
    return Error{"'on' would let anybody on the way choose to send in clear; write require or off"};
  }
  return choose<rtrs::TlsMode>(value,
                               {{"off", rtrs::TlsMode::off}, {"require", rtrs::TlsMode::require}});
}

/// The keys that stand for themselves.
std::optional<Done> set_option(ClientConfig& config, std::string_view key, std::string_view value) {
  if (key == "device") return store(config.device, parse_device(value));
  if (key == "access") {
    auto mode = choose<wire::AccessMode>(value, {{"ro", wire::AccessMode::read_only},
                                                 {"rw", wire::AccessMode::read_write},
                                                 {"migration", wire::AccessMode::migration}});
    if (!mode) return Done{Error{mode.error()}};
    config.access = *mode;
    return Done{};
  }
  if (key == "mode") {
    return store(config.passive, choose<bool>(value, {{"two-sided", false}, {"passive", true}}));
  }
  if (key == "uuid") return store(config.uuid, parse_uuid(value));
  if (key == "server-id") return store(config.server_id, rtrs::parse_server_id(value));
  if (key == "dynamic-export") return store(config.dynamic_export, parse_bool(value));
  if (key == "session") return store(config.session_name, parse_session_name(value));
  if (key == "lanes") return store(config.lanes, parse_number(value, 1, 64));
  if (key == "spin") return store(config.spin, parse_spin(value));
  if (key == "connect") {
    return store(config.connect_now, choose<bool>(value, {{"lazy", false}, {"now", true}}));
  }
  if (key == "connect-timeout") {
    return store(config.connect_timeout, rtrs::parse_duration(value, kConnectTimeouts));
  }
  if (key == "heartbeat") {
    return store(config.heartbeat, rtrs::parse_duration(value, kHeartbeats));
  }
  if (key == "heartbeat-misses")
    return store(config.heartbeat_misses, parse_number(value, 1, 1000));
  if (key == "paths") {
    return store(config.paths_of_server, choose<bool>(value, {{"given", false}, {"auto", true}}));
  }
  if (key == "policy") return store(config.policy, parse_policy(value));
  if (key == "no-path-timeout")
    return store(config.no_path_timeout, rtrs::parse_duration(value, kWaits));
  if (key == "no-path-error") return store(config.no_path_error, parse_error(value));
  if (key == "reconnect-min") {
    return store(config.reconnect_min, rtrs::parse_duration(value, kReconnectPauses));
  }
  if (key == "reconnect-max") {
    return store(config.reconnect_max, rtrs::parse_duration(value, kReconnectPauses));
  }
  if (key == "settle-time") return store(config.settle_time, rtrs::parse_duration(value, kWaits));
  if (key == "require-ext") return store(config.require_extension, parse_bool(value));
  if (key == "control") return store(config.control, absolute_socket_path(value));
  if (key == "digest") return set_digest(config, value);
  if (key == "extensions") return store(config.extensions, parse_bool(value));
  if (auto done = set_tls_key(config.tls_keys, key, value)) return done;
  if (key == "discard") return store(config.geometry.discard, parse_use(value));
  if (key == "write-zeroes") return store(config.geometry.write_zeroes, parse_use(value));
  return std::nullopt;
}

/// The keys that name the server are kept until all are there.
template <class T>
Done store_once(std::optional<T>& to, tl::expected<T, std::string> value) {
  if (!value) return Error{value.error()};
  if (to.has_value()) return Error{"may be given only once"};
  to = *std::move(value);
  return {};
}

constexpr ConfigKey kKeys[] = {
    {"uri", "<URI>",
     "rnbd+tcp://HOST[:PORT]/DEVICE (TCP), rnbds+tcp://[USER@]HOST[:PORT]/DEVICE (with TLS) or "
     "rnbd://HOST[:PORT]/DEVICE (RDMA)."},
    {"server", "HOST[:PORT]", "The server, when there is no uri. Default port 1234."},
    {"transport", "tcp|rdma", "How to reach the server, when there is no uri (default tcp)."},
    {"path", "[SRC@]DST[:PORT]",
     "Another path to the server, or a source address for the one to DST; 8 in all. tcp: or rdma: "
     "in front chooses the transport; ,preference=N behind it how much it is wanted (-9 to 9)."},
    {"paths", "given|auto",
     "auto: add the addresses that the server advertises as further paths, once, when the session "
     "is first connected (default given: only those that are named here)."},
    {"policy", "POLICY",
     "Of equally good paths: round-robin, min-inflight or min-latency (default min-inflight)."},
    {"no-path-timeout", "DURATION",
     "Requests wait so long for a path, then fail (default 30s; 0 = for ever)."},
    {"no-path-error", "ERRNO",
     "With what reads and writes fail then: EIO, ENOSPC or ESHUTDOWN (default EIO)."},
    {"reconnect-min", "DURATION",
     "The first pause between attempts to connect a lost path; each is twice as long as the one "
     "before (default 100ms)."},
    {"reconnect-max", "DURATION", "The longest of these pauses (default 2s)."},
    {"settle-time", "DURATION",
     "A better path must be steady so long to be used again (default 10s)."},
    {"device", "NAME", "The export to open, when the uri does not name one."},
    {"uuid", "UUID",
     "The disk must have this UUID, which nbdinfo shows; another one is refused. Also in the URI, "
     "behind the device: ?uuid=UUID."},
    {"server-id", "ID",
     "The server must have this identity, which rnbd-ctl shows; each path may begin the session "
     "then, not only that of the uri. Also in the URI, like uuid."},
    {"dynamic-export", "BOOL", "Open the export that each client names (default false)."},
    {"access", "ro|rw|migration",
     "Access mode (default: rw from the first write on, ro where it may not write)."},
    {"mode", "two-sided|passive",
     "passive: read and write the blocks of a brick without the server's processor, where that is "
     "possible (default two-sided). Also in the URI: ?mode=passive."},
    {"session", "NAME", "Name of the session at the server (default: made up)."},
    {"lanes", "N", "I/O connections to the server (default: one per CPU, at most 4)."},
    {"spin", "DURATION",
     "Look for an answer so long before sleeping, while answers come so soon (default 0: sleep at "
     "once; at most 1ms)."},
    {"connect", "lazy|now",
     "now: fail at start when server and device cannot be used (default lazy)."},
    {"connect-timeout", "DURATION",
     "Clients wait so long for a connection to the server (default 10s)."},
    {"heartbeat", "DURATION", "Interval between signs of life (default 500ms)."},
    {"heartbeat-misses", "N", "Silent intervals until the server counts as lost (default 4)."},
    {"control", "PATH", "Unix socket for rnbd-ctl, which shows and changes the session's paths."},
    {"digest", "all|header|none",
     "CRC32C over TCP of headers and data (default all; none with TLS, which checks itself)."},
    {"tls", "off|require", "Encrypt over TCP; rnbds+tcp:// in the uri says require (default off)."},
    {"tls-psk", "FILE",
     "File with the shared key, a line NAME:HEX; or credential:NAME, that of systemd."},
    {"tls-username", "NAME", "The name of that key, if the file has several."},
    {"auth-psk", "FILE",
     "Without TLS, as over RDMA: both ends prove that they have the shared key of this file. "
     "Nothing is encrypted."},
    {"auth-username", "NAME", "The name of that key, if the file has several."},
    {"tls-certificates", "DIRECTORY",
     "Directory with ca-cert.pem and perhaps client-cert.pem and client-key.pem; or "
     "credential:NAME."},
    {"tls-verify", "BOOL", "Demand that the server's certificate is right (default true)."},
    {"extensions", "BOOL", "Use what only rnbdkit servers have (default true)."},
    {"require-ext", "BOOL", "Refuse servers that do not have it (default false)."},
    {"discard", "auto|on|off", "Pass trim on (default auto: to rnbdkit servers)."},
    {"write-zeroes", "auto|on|off", "Let the server write zeroes (default auto: rnbdkit servers)."},
};

/// "did you mean 'access'? ", or nothing.
std::string guess(std::string_view key) {
  std::vector<std::string> known;
  for (const ConfigKey& entry : kKeys) known.emplace_back(entry.key);
  const std::string best = closest(key, known);
  return best.empty() ? "" : "did you mean " + in_quotes(best) + "? ";
}

}  // namespace

tl::expected<rtrs::PathPolicy, std::string> parse_policy(std::string_view name) {
  return choose<rtrs::PathPolicy>(name, kPolicies);
}

std::string name_of(rtrs::PathPolicy policy) {
  for (const auto& [name, meaning] : kPolicies) {
    if (meaning == policy) return std::string{name};
  }
  return "";
}

std::span<const ConfigKey> config_keys() { return kKeys; }

std::string config_help() {
  constexpr std::size_t kColumn = 26;
  constexpr std::size_t kWidth = 92;
  std::string text;
  for (const ConfigKey& entry : kKeys) {
    std::string line = std::string{entry.key} + "=" + entry.value;
    line.resize(std::max(line.size() + 1, kColumn), ' ');
    std::istringstream words{entry.help};
    for (std::string word; words >> word;) {
      if (line.size() + word.size() > kWidth) {
        text += line + "\n";
        line.assign(kColumn, ' ');
      }
      line += word + " ";
    }
    text += line + "\n";
  }
  text.pop_back();
  return text;
}

std::string host_and_port(const rtrs::PathAddress& path) {
  const bool ipv6 = path.host.find(':') != std::string::npos;
  return (ipv6 ? "[" + path.host + "]" : path.host) + ":" + std::to_string(path.port);
}

std::string ClientConfig::server() const {
  const rtrs::PathAddress& path = paths.front();
  const std::string kind = mirror ? "-mirror" : "";
  const std::string tcp = (tls == rtrs::TlsMode::off ? "rnbd" : "rnbds") + kind + "+tcp";
  std::string text = (path.transport == rtrs::TransportKind::tcp ? tcp : "rnbd" + kind) + "://";
  if (!mirror) return text + host_and_port(path);
  for (const auto& member : mirror->members)
    text += (text.back() == '/' ? "" : ",") + host_and_port(member.front());
  return text;
}

std::string ClientConfig::server_and_keys() const {
  std::string words = server();
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) words += std::string{" "} + key + "=" + word_of_shell(value);
  };
  add("tls-username", tls_keys.username);
  add("tls-psk", tls_keys.psk);
  add("tls-certificates", tls_keys.certificates);
  if (!tls_keys.verify_peer) words += " tls-verify=false";
  if (auth_keys) {
    add("auth-username", auth_keys->username);
    add("auth-psk", auth_keys->psk);
  }
  return words;
}

Done ConfigReader::set(std::string_view key, std::string_view value) {
  const auto named = [&](Done done) -> Done {
    if (!done) return Error{std::string{key} + "=: " + done.error()};
    return done;
  };
  // As they are called behind the '?' of a URI.
  if (key == "tls-psk-file" || key == "auth-psk-file") key.remove_suffix(5);
  if (key == "uri") return named(set_uri(value));
  if (key == "tls") return named(store_once(tls_, parse_tls(value)));
  if (key == "auth-psk") return named(store(auth_keys_.psk, parse_key_file(value)));
  if (key == "auth-username") {
    if (value.empty()) return named(Error{"the name is missing"});
    auth_keys_.username = value;
    return {};
  }
  if (key == "server") return named(store_once(server_, parse_host_port(value)));
  if (key == "transport") {
    return named(store_once(
        transport_, choose<rtrs::TransportKind>(value, {{"tcp", rtrs::TransportKind::tcp},
                                                        {"rdma", rtrs::TransportKind::rdma}})));
  }
  if (key == "path") {
    // The transport may be named later; here only the form is judged.
    if (auto path = parse_path(value, rtrs::TransportKind::tcp); !path) {
      return named(Error{path.error()});
    }
    paths_.emplace_back(value);
    return {};
  }
  if (auto done = set_option(config_, key, value)) return named(*std::move(done));
  return Error{"unknown parameter " + in_quotes(key) + "; " + guess(key) +
               "`nbdkit rnbd --help` and nbdkit-rnbd-plugin(1) list all"};
}

/// Names of disk and server, and the keys of TLS, may stand in the URI; the rest are keys of their
/// own.
Done ConfigReader::set_uri(std::string_view text) {
  if (auto done = store_once(uri_, parse_device_uri(text)); !done) return done;
  if (!uri_->members.empty()) mirror_.members = uri_->members;
  constexpr std::string_view kKnown[] = {"uuid",         "server-id",        "mode",
                                         "tls-psk-file", "tls-certificates", "tls-verify",
                                         "auth-psk-file"};
  for (const auto& [key, value] : uri_->options) {
    if (key == "read" || key == "degraded" || key == "group" || key == "resync-rate" ||
        key == "create") {
      if (auto done = set_mirror_option(key, value); !done)
        return Error{key + "=: " + done.error()};
      continue;
    }
    if (std::ranges::find(kKnown, key) == std::end(kKnown)) {
      return Error{
          "only uuid=, server-id=, mode=, tls-psk-file=, tls-certificates=, tls-verify= and "
          "auth-psk-file= may stand behind '?' in the URI; give " +
          in_quotes(key + "=") + " as a separate key"};
    }
    // As libnbd calls it there.
    const bool is_file = key.ends_with("-psk-file");
    const auto name = std::string_view{key}.substr(0, is_file ? key.size() - 5 : key.size());
    if (auto done = set(name, value); !done) return done;
  }
  return {};
}

Done ConfigReader::set_mirror_option(std::string_view key, std::string_view value) {
  if (mirror_.members.empty()) {
    return Error{
        "only a mirror has that; write rnbd-mirror+tcp://HOST,HOST/DEVICE, or leave it out"};
  }
  if (key == "read")
    return store(mirror_.near, choose<bool>(value, {{"near", true}, {"round-robin", false}}));
  if (key == "degraded") {
    return store(mirror_.degraded,
                 choose<mirror::Degraded>(value, {{"allow", mirror::Degraded::allow},
                                                  {"quorum", mirror::Degraded::quorum}}));
  }
  if (key == "create")
    return store(mirror_.create_copy, choose<bool>(value, {{"empty", false}, {"copy", true}}));
  if (key == "resync-rate") {
    constexpr unsigned kMost = 1U << 20;
    const auto mib = parse_number(value, 1, kMost);
    if (!mib) return Error{mib.error() + "; it is MiB per second"};
    mirror_.resync_rate = std::uint64_t{*mib} << 20;
    return {};
  }
  const auto group = parse_uuid(value);
  if (!group) return Error{in_quotes(value) + " is not a UUID"};
  mirror_.group = *group;
  return {};
}

std::string make_session_name() {
  std::array<char, 65> host{};
  if (gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"host"};
  std::string name{host.data()};
  for (char& c : name) {
    const bool plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    if (!plain) c = '-';
  }
  std::random_device random;
  std::array<char, 9> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x", static_cast<unsigned>(random()));
  return name + "-" + digits.data();
}

}  // namespace rnbd
