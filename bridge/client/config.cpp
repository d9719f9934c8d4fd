// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/config.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <random>
#include <sstream>

#include "bridge/client/annex.hpp"
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
using Draft = ClientDraft;
using Value = const std::string&;

// ---- Values -------------------------------------------------------------------------------------

std::string set_duration(rtrs::Duration& target, Value value, rtrs::DurationRange range = {}) {
  return set(target, rtrs::parse_duration(value, range));
}

constexpr rtrs::DurationRange kConnectTimeouts{.least = std::chrono::milliseconds{1}};
constexpr rtrs::DurationRange kHeartbeats{.least = std::chrono::milliseconds{10},
                                          .most = std::chrono::minutes{1}};
constexpr rtrs::DurationRange kReconnectPauses{.least = std::chrono::milliseconds{1},
                                               .most = std::chrono::minutes{5}};

std::string set_spin(rtrs::Duration& target, Value value) {
  rtrs::Duration spin{};
  if (const std::string wrong = set_duration(spin, value); !wrong.empty()) return wrong;
  if (spin > rtrs::kMaxSpin)
    return in_quotes(value) + " is longer than 1ms; write a time such as 50us, or 0";
  target = spin;
  return "";
}

std::string set_session_name(std::string& target, Value value) {
  if (!rtrs::wire::is_valid_session_name(value)) {
    return in_quotes(value) +
           " is not a session name; write 1 to 254 printable characters without '/' and '.'";
  }
  target = value;
  return "";
}

std::string set_device(std::string& target, Value value) {
  target = value;
  return complaint_about_device_name(value);
}

std::string set_user(std::string& target, Value value) {
  target = value;
  return value.empty() ? "the name is missing" : "";
}

/// A key that names the server: two of them would contradict each other.
template <class T>
std::string set_once(std::optional<T>& target, tl::expected<T, std::string> value) {
  if (!value) return value.error();
  if (target.has_value()) return "may be given only once";
  target = *std::move(value);
  return "";
}

std::string set_tls(Draft& draft, Value value) {
  static constexpr OptionWord<rtrs::TlsMode> kModes[] = {{"off", rtrs::TlsMode::off},
                                                         {"require", rtrs::TlsMode::require}};
  if (value == "on")
    return "'on' would let anybody on the way choose to send in clear; write require or off";
  rtrs::TlsMode mode{};
  if (const std::string wrong = set_word(mode, value, kModes); !wrong.empty()) return wrong;
  return set_once<rtrs::TlsMode>(draft.tls, mode);
}

std::string set_transport(Draft& draft, Value value) {
  static constexpr OptionWord<rtrs::TransportKind> kKinds[] = {{"tcp", rtrs::TransportKind::tcp},
                                                               {"rdma", rtrs::TransportKind::rdma}};
  rtrs::TransportKind kind{};
  if (const std::string wrong = set_word(kind, value, kKinds); !wrong.empty()) return wrong;
  return set_once<rtrs::TransportKind>(draft.transport, kind);
}

/// The transport may be named later; here only the form is judged.
std::string add_path(Draft& draft, Value value) {
  if (auto path = parse_path(value, rtrs::TransportKind::tcp); !path) return path.error();
  draft.paths.emplace_back(value);
  return "";
}

std::string set_uri(Draft& draft, Value text);

constexpr OptionWord<rtrs::PathPolicy> kPolicies[] = {
    {"round-robin", rtrs::PathPolicy::round_robin},
    {"min-inflight", rtrs::PathPolicy::min_inflight},
    {"min-latency", rtrs::PathPolicy::min_latency}};
/// Those that NBD can carry, and that mean something else than a wrong request.
constexpr OptionWord<int> kPathErrors[] = {
    {"EIO", EIO}, {"ENOSPC", ENOSPC}, {"ESHUTDOWN", ESHUTDOWN}};
constexpr OptionWord<wire::AccessMode> kModes[] = {{"ro", wire::AccessMode::read_only},
                                                   {"rw", wire::AccessMode::read_write},
                                                   {"migration", wire::AccessMode::migration}};
constexpr OptionWord<bool> kPathSources[] = {{"given", false}, {"auto", true}};
constexpr OptionWord<bool> kConnections[] = {{"lazy", false}, {"now", true}};
constexpr OptionWord<int> kDigests[] = {{"all", 2}, {"header", 1}, {"none", 0}};
constexpr OptionWord<Use> kUses[] = {
    {"auto", Use::automatic}, {"on", Use::always}, {"off", Use::never}};

// ---- The options --------------------------------------------------------------------------------

constexpr ClientOption kOptions[] = {
    {{"uri", "<URI>", "rnbd+tcp://storage/disk0",
      "rnbd+tcp://HOST[:PORT]/DEVICE (TCP), rnbds+tcp://[USER@]HOST[:PORT]/DEVICE (with TLS) or "
      "rnbd://HOST[:PORT]/DEVICE (RDMA).",
      set_uri}},
    {{"server", "HOST[:PORT]", "storage", "The server, when there is no uri. Default port 1234.",
      [](Draft& d, Value v) { return set_once(d.server, parse_host_port(v)); }}},
    {{"transport", "tcp|rdma", "rdma",
      "How to reach the server, when there is no uri (default tcp).", set_transport}},
    {{"path", "[SRC@]DST[:PORT]", "10.0.1.1",
      "Another path to the server, or a source address for the one to DST; 8 in all. tcp: or rdma: "
      "in front chooses the transport; ,preference=N behind it how much it is wanted (-9 to 9).",
      add_path}},
    {{"paths", "given|auto", "auto",
      "auto: add the addresses that the server advertises as further paths, once, when the session "
      "is first connected (default given: only those that are named here).",
      [](Draft& d, Value v) { return set_word(d.config.paths_of_server, v, kPathSources); }}},
    {{"policy", "POLICY", "min-latency",
      "Of equally good paths: round-robin, min-inflight or min-latency (default min-inflight).",
      [](Draft& d, Value v) { return set_word(d.config.policy, v, kPolicies); }}},
    {{"no-path-timeout", "DURATION", "30s",
      "Requests wait so long for a path, then fail (default 30s; 0 = for ever).",
      [](Draft& d, Value v) { return set_duration(d.config.no_path_timeout, v); }}},
    {{"no-path-error", "ERRNO", "EIO",
      "With what reads and writes fail then: EIO, ENOSPC or ESHUTDOWN (default EIO).",
      [](Draft& d, Value v) { return set_word(d.config.no_path_error, v, kPathErrors); }}},
    {{"reconnect-min", "DURATION", "100ms",
      "The first pause between attempts to connect a lost path; each is twice as long as the one "
      "before (default 100ms).",
      [](Draft& d, Value v) { return set_duration(d.config.reconnect_min, v, kReconnectPauses); }}},
    {{"reconnect-max", "DURATION", "2s", "The longest of these pauses (default 2s).",
      [](Draft& d, Value v) { return set_duration(d.config.reconnect_max, v, kReconnectPauses); }}},
    {{"settle-time", "DURATION", "10s",
      "A better path must be steady so long to be used again (default 10s).",
      [](Draft& d, Value v) { return set_duration(d.config.settle_time, v); }}},
    {{"device", "NAME", "disk0", "The export to open, when the uri does not name one.",
      [](Draft& d, Value v) { return set_device(d.config.device, v); }}},
    {{"uuid", "UUID", "01234567-89ab-cdef-0123-456789abcdef",
      "The disk must have this UUID, which nbdinfo shows; another one is refused. Also in the URI, "
      "behind the device: ?uuid=UUID.",
      [](Draft& d, Value v) { return set(d.config.uuid, parse_uuid(v)); }},
     OptionPlace::both},
    {{"server-id", "ID", "0123456789abcdef",
      "The server must have this identity, which rnbd-ctl shows; each path may begin the session "
      "then, not only that of the uri. Also in the URI, like uuid.",
      [](Draft& d, Value v) { return set(d.config.server_id, rtrs::parse_server_id(v)); }},
     OptionPlace::both},
    {{"dynamic-export", "BOOL", "true", "Open the export that each client names (default false).",
      [](Draft& d, Value v) { return set_bool(d.config.dynamic_export, v); }}},
    {{"access", "ro|rw|migration", "ro",
      "Access mode (default: rw from the first write on, ro where it may not write).",
      [](Draft& d, Value v) { return set_word(d.config.access, v, kModes); }}},
    {{"session", "NAME", "vm1", "Name of the session at the server (default: made up).",
      [](Draft& d, Value v) { return set_session_name(d.config.session_name, v); }}},
    {{"lanes", "N", "2", "I/O connections to the server (default: one per CPU, at most 4).",
      [](Draft& d, Value v) { return set_number(d.config.lanes, v, 1, 64); }}},
    {{"spin", "DURATION", "50us",
      "Look for an answer so long before sleeping, while answers come so soon (default 0: sleep at "
      "once; at most 1ms).",
      [](Draft& d, Value v) { return set_spin(d.config.spin, v); }}},
    {{"connect", "lazy|now", "now",
      "now: fail at start when server and device cannot be used (default lazy).",
      [](Draft& d, Value v) { return set_word(d.config.connect_now, v, kConnections); }}},
    {{"connect-timeout", "DURATION", "10s",
      "Clients wait so long for a connection to the server (default 10s).",
      [](Draft& d, Value v) {
        return set_duration(d.config.connect_timeout, v, kConnectTimeouts);
      }}},
    {{"heartbeat", "DURATION", "500ms", "Interval between signs of life (default 500ms).",
      [](Draft& d, Value v) { return set_duration(d.config.heartbeat, v, kHeartbeats); }}},
    {{"heartbeat-misses", "N", "4", "Silent intervals until the server counts as lost (default 4).",
      [](Draft& d, Value v) { return set_number(d.config.heartbeat_misses, v, 1, 1000); }}},
    {{"control", "PATH", "/run/rnbd/disk0.control",
      "Unix socket for rnbd-ctl, which shows and changes the session's paths.",
      [](Draft& d, Value v) { return set(d.config.control, absolute_socket_path(v)); }}},
    {{"digest", "all|header|none", "header",
      "CRC32C over TCP of headers and data (default all; none with TLS, which checks itself).",
      [](Draft& d, Value v) { return set_word(d.config.digest, v, kDigests); }}},
    {{"tls", "off|require", "require",
      "Encrypt over TCP; rnbds+tcp:// in the uri says require (default off).", set_tls}},
    {{"tls-psk", "FILE", "/etc/rnbd/host1.psk",
      "File with the shared key, a line NAME:HEX; or credential:NAME, that of systemd.",
      [](Draft& d, Value v) { return set(d.config.tls_keys.psk, parse_key_file(v)); }},
     OptionPlace::both},
    {{"tls-username", "NAME", "host1", "The name of that key, if the file has several.",
      [](Draft& d, Value v) { return set_user(d.config.tls_keys.username, v); }}},
    {{"auth-psk", "FILE", "/etc/rnbd/host1.psk",
      "Without TLS, as over RDMA: both ends prove that they have the shared key of this file. "
      "Nothing is encrypted.",
      [](Draft& d, Value v) { return set(d.auth_keys.psk, parse_key_file(v)); }},
     OptionPlace::both},
    {{"auth-username", "NAME", "host1", "The name of that key, if the file has several.",
      [](Draft& d, Value v) { return set_user(d.auth_keys.username, v); }}},
    {{"tls-certificates", "DIRECTORY", "/etc/rnbd/tls",
      "Directory with ca-cert.pem and perhaps client-cert.pem and client-key.pem; or "
      "credential:NAME.",
      [](Draft& d, Value v) { return set(d.config.tls_keys.certificates, parse_key_file(v)); }},
     OptionPlace::both},
    {{"tls-verify", "BOOL", "false",
      "Demand that the server's certificate is right (default true).",
      [](Draft& d, Value v) { return set_bool(d.config.tls_keys.verify_peer, v); }},
     OptionPlace::both},
    {{"extensions", "BOOL", "true", "Use what only rnbdkit servers have (default true).",
      [](Draft& d, Value v) { return set_bool(d.config.extensions, v); }}},
    {{"require-ext", "BOOL", "true", "Refuse servers that do not have it (default false).",
      [](Draft& d, Value v) { return set_bool(d.config.require_extension, v); }}},
    {{"discard", "auto|on|off", "on", "Pass trim on (default auto: to rnbdkit servers).",
      [](Draft& d, Value v) { return set_word(d.config.geometry.discard, v, kUses); }}},
    {{"write-zeroes", "auto|on|off", "off",
      "Let the server write zeroes (default auto: rnbdkit servers).",
      [](Draft& d, Value v) { return set_word(d.config.geometry.write_zeroes, v, kUses); }}},
};

/// All of them, those of a URI included.
const std::vector<const ClientOption*>& all_options() {
  static const std::vector<const ClientOption*> all = [] {
    std::vector<const ClientOption*> options;
    for (const ClientOption& option : kOptions) options.push_back(&option);
    for (const ClientAnnex* annex : client_annexes())
      for (const ClientOption& option : annex->options) options.push_back(&option);
    return options;
  }();
  return all;
}

/// libnbd calls files of shared keys so in URIs.
constexpr std::string_view kFileSuffix = "-file";
std::string_view without_suffix(std::string_view key) {
  if (key.ends_with("-psk-file")) key.remove_suffix(kFileSuffix.size());
  return key;
}

const ClientOption* find_option(std::string_view key, bool in_uri) {
  if (in_uri && key.ends_with("-psk")) return nullptr;
  for (const ClientOption* option : all_options()) {
    if (option->key != without_suffix(key)) continue;
    const OptionPlace no = in_uri ? OptionPlace::key : OptionPlace::uri;
    return option->place == no ? nullptr : option;
  }
  return nullptr;
}

/// "a=, b= and c="
std::string options_of_uri() {
  std::vector<std::string> names;
  for (const ClientOption* option : all_options()) {
    const std::string key{option->key};
    if (option->place != OptionPlace::both) continue;
    names.push_back(key + std::string{key.ends_with("-psk") ? kFileSuffix : ""} + "=");
  }
  std::string text;
  for (const std::string& name : names)
    text += (&name == &names.front() ? "" : &name == &names.back() ? " and " : ", ") + name;
  return text;
}

Done apply(const ClientOption& option, Draft& draft, Value value) {
  const std::string wrong = option.apply(draft, value);
  if (!wrong.empty()) return Error{std::string{option.key} + "=: " + wrong};
  return {};
}

/// Names of disk and server, and the keys of TLS, may stand in the URI; the rest are keys of their
/// own.
std::string set_uri(Draft& draft, Value text) {
  if (std::string wrong = set_once(draft.uri, parse_device_uri(text)); !wrong.empty()) return wrong;
  draft.config.several = draft.uri->several;
  draft.config.servers = draft.uri->servers;
  for (const auto& [key, value] : draft.uri->options) {
    const ClientOption* const option = find_option(key, true);
    if (option == nullptr) {
      return "only " + options_of_uri() + " may stand behind '?' in the URI; give " +
             in_quotes(key + "=") + " as a separate key";
    }
    if (auto done = apply(*option, draft, value); !done) return done.error();
  }
  return "";
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

/// "did you mean 'access'? ", or nothing.
std::string guess(std::string_view key) {
  std::vector<std::string> known;
  for (const ClientOption* option : client_options()) known.emplace_back(option->key);
  const std::string best = closest(key, known);
  return best.empty() ? "" : "did you mean " + in_quotes(best) + "? ";
}

}  // namespace

tl::expected<rtrs::PathPolicy, std::string> parse_policy(std::string_view name) {
  rtrs::PathPolicy policy{};
  const std::string wrong = set_word(policy, name, kPolicies);
  if (!wrong.empty()) return Error{wrong};
  return policy;
}

std::string name_of(rtrs::PathPolicy policy) {
  for (const auto& [name, meaning] : kPolicies) {
    if (meaning == policy) return std::string{name};
  }
  return "";
}

const std::vector<const ClientOption*>& client_options() {
  static const std::vector<const ClientOption*> keys = [] {
    std::vector<const ClientOption*> options = all_options();
    std::erase_if(options,
                  [](const ClientOption* option) { return option->place == OptionPlace::uri; });
    return options;
  }();
  return keys;
}

std::string config_help() {
  constexpr std::size_t kColumn = 26;
  constexpr std::size_t kWidth = 92;
  std::string text;
  for (const ClientOption* option : client_options()) {
    std::string line = std::string{option->key} + "=" + option->value;
    line.resize(std::max(line.size() + 1, kColumn), ' ');
    std::istringstream words{option->help};
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
  const std::string kind = several.empty() ? "" : "-" + several;
  const std::string tcp = (tls == rtrs::TlsMode::off ? "rnbd" : "rnbds") + kind + "+tcp";
  std::string text = (path.transport == rtrs::TransportKind::tcp ? tcp : "rnbd" + kind) + "://";
  if (servers.empty()) return text + host_and_port(path);
  for (const auto& each : servers)
    text += (text.back() == '/' ? "" : ",") + host_and_port(each.front());
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
  const ClientOption* const option = find_option(key, false);
  if (option != nullptr) return apply(*option, draft_, std::string{value});
  return Error{"unknown parameter " + in_quotes(key) + "; " + guess(key) +
               "`nbdkit rnbd --help` and nbdkit-rnbd-plugin(1) list all"};
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
