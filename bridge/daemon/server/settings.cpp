// SPDX-License-Identifier: BSD-3-Clause
// The settings with a value each: their rules, and how values are read.
#include "bridge/daemon/server/settings.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <iterator>
#include <limits>

#include "bridge/backend/specification.hpp"
#include "bridge/client/key_file.hpp"
#include "bridge/client/uri.hpp"
#include "bridge/control/unix_socket.hpp"
#include "bridge/daemon/metrics_address.hpp"
#include "bridge/daemon/server/annex.hpp"
#include "bridge/daemon/server/rights_check.hpp"
#include "rdma/duration.hpp"

namespace rnbd {

tl::expected<rtrs::TlsMode, std::string> parse_tls_mode(std::string_view value) {
  using rtrs::TlsMode;
  for (const TlsMode mode : {TlsMode::off, TlsMode::on, TlsMode::require}) {
    if (value == to_string(mode)) return mode;
  }
  return tl::unexpected("'" + std::string{value} + "' is not off, on or require");
}
namespace {

template <class T>
std::string set_size(T& target, const std::string& value, std::uint64_t least, std::uint64_t most) {
  const auto size = parse_size(value);
  if (!size) return size.error().text;
  if (*size < least || *size > most) {
    return "'" + value + "' is not a size from " + std::to_string(least) + " to " +
           std::to_string(most) + " bytes";
  }
  target = static_cast<T>(*size);
  return "";
}

std::string set_duration(rtrs::Duration& target, const std::string& value, rtrs::Duration most) {
  constexpr std::chrono::milliseconds kLeast{10};
  const auto duration = rtrs::parse_duration(value, {.least = kLeast, .most = most});
  if (!duration) return duration.error();
  target = *duration;
  return "";
}

std::string set_switch(bool& target, const std::string& value) {
  if (value != "true" && value != "false") return "'" + value + "' is neither true nor false";
  target = value == "true";
  return "";
}

std::string set_log_level(rtrs::LogLevel& target, const std::string& value) {
  const std::vector<std::string> levels{"debug", "info", "warning", "error"};
  const auto found = std::find(levels.begin(), levels.end(), value);
  if (found == levels.end())
    return "'" + value + "' is not a level; use debug, info, warning or error";
  target = static_cast<rtrs::LogLevel>(found - levels.begin());
  return "";
}

std::string set_key_file(std::string& target, const std::string& value) {
  auto name = parse_key_file(value);
  if (!name) return name.error();
  target = *std::move(name);
  return "";
}

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::int64_t>::max();
constexpr std::uint64_t kMostIops = 1'000'000'000;
using Value = const std::string&;

constexpr SettingRule kRules[] = {
    {"search-path", "DIRECTORY", "/srv/rnbd",
     "Let clients also open files and block devices below this directory by name. With "
     "/%SESSNAME% or /%IDENTITY% at its end each client sees only the directory that has its "
     "session's name, or the name that it has proven.",
     [](Settings& s, Value v) { return set_text(s.search_path, v); }},
    {"search-rw", "USER,...", "host1,vm-*",
     "Who may write to what is below the search path: names that clients prove, or beginnings of "
     "some with * behind it, or @NETWORK for clients that prove none.",
     [](Settings& s, Value v) { return add_patterns(s.search_rights.rw, v); }},
    {"search-ro", "USER,...", "backup", "Who may read what is below the search path.",
     [](Settings& s, Value v) { return add_patterns(s.search_rights.ro, v); }},
    {"state-directory", "DIRECTORY", "/var/lib/rnbd",
     "Keep there what has to outlive this server: who wrote to which storage last (default: "
     "$STATE_DIRECTORY or /var/lib/rnbd).",
     [](Settings& s, Value v) { return set_text(s.state_directory, v); }},
    {"log-level", "LEVEL", "info", "What to log: debug, info (default), warning or error.",
     [](Settings& s, Value v) { return set_log_level(s.log_level, v); }},
    {"pid-file", "FILE", "/run/rnbd-server/pid", "Write the process id there once ready.",
     [](Settings& s, Value v) { return set_text(s.pid_file, v); }},
    {"control", "PATH", "/run/rnbd-server/control",
     "Serve a control socket there for rnbd-ctl: status, reload and others (default: "
     "$RUNTIME_DIRECTORY/control, if there is one); none for none.",
     [](Settings& s, Value v) -> std::string {
       s.control = v;
       return v == "none" ? "" : complaint_about_socket_path(v);
     }},
    {"metrics", "ADDRESS:PORT", "127.0.0.1:9234",
     "Serve metrics there for Prometheus, over HTTP at /metrics; without ADDRESS on 127.0.0.1.",
     [](Settings& s, Value v) -> std::string {
       const auto address = parse_metrics_address(v);
       if (!address) return address.error();
       s.metrics = v;
       return "";
     }},
    {"queue-depth", "N", "256", "Requests in flight per client session (default 256).",
     [](Settings& s, Value v) { return set_number(s.queue_depth, v, 1, 65535); }},
    {"max-io-size", "SIZE", "256K",
     "Data per request, a multiple of 4096 bytes (default 256K); clients split larger ones.",
     [](Settings& s, Value v) { return set_size(s.max_io_size, v, 4096, 128U << 20); }},
    {"memory-limit", "SIZE", "4G",
     "Request memory of all sessions together (default: one path for each of max-sessions, but at "
     "most half of the machine's memory). Over RDMA a path of a session takes queue depth x (max "
     "I/O size + 4096); over TCP it has queue depth x 12288 and 8 x max I/O size, and borrows more "
     "while it is busy.",
     [](Settings& s, Value v) { return set_size(s.memory_limit, v, 8192, kUnlimited); }},
    {"max-sessions", "N", "1024",
     "Client sessions at a time (default 1024, fewer on a machine with less than 20 GiB).",
     [](Settings& s, Value v) { return set_number(s.max_sessions, v, 1, 65535); }},
    {"max-sessions-per-user", "N", "16",
     "Client sessions of one user who has proven a name (default: max-sessions).",
     [](Settings& s, Value v) { return set_number(s.max_sessions_per_user, v, 1, 65535); }},
    {"memory-limit-per-user", "SIZE", "512M",
     "Request memory of all sessions of one such user, with what they borrow (default: the memory "
     "limit).",
     [](Settings& s, Value v) { return set_size(s.memory_limit_per_user, v, 8192, kUnlimited); }},
    {"max-connections", "N", "8192",
     "Connections at a time (default 8192, but at most half of LimitNOFILE, and fewer on a machine "
     "with less than 7 GiB).",
     [](Settings& s, Value v) { return set_number(s.max_connections, v, 1, 1000000); }},
    {"session-iops-limit", "N", "1000",
     "Operations per second that each client session may do, over all that it has open (default: "
     "no "
     "limit). What comes faster waits.",
     [](Settings& s, Value v) { return set_iops_limit(s.session_limits, v); }},
    {"session-bandwidth-limit", "SIZE", "100M",
     "Bytes per second that each client session may read and write (default: no limit).",
     [](Settings& s, Value v) { return set_bandwidth_limit(s.session_limits, v); }},
    {"reactors", "N", "2", "Threads that serve (default 0: one per CPU, at most 8).",
     [](Settings& s, Value v) { return set_number(s.reactors, v, 0, 256); }},
    {"heartbeat", "TIME", "500ms", "How often an idle client must show life (default 500ms).",
     [](Settings& s, Value v) { return set_duration(s.heartbeat, v, std::chrono::minutes{1}); }},
    {"handshake-timeout", "TIME", "10s",
     "Within which a new connection must have said who it is (default 10s).",
     [](Settings& s, Value v) {
       return set_duration(s.handshake_timeout, v, std::chrono::minutes{5});
     }},
    {"no-digest", nullptr, "true", "Do not offer CRC32C checksums on the wire.",
     [](Settings& s, Value v) { return set_switch(s.no_digest, v); }},
    {"always-invalidate", nullptr, "true",
     "RDMA: lock a request's memory against its client while it executes.",
     [](Settings& s, Value v) { return set_switch(s.always_invalidate, v); }},
    {"tls", "off|on|require", "require",
     "Encrypt connections over TCP: off, on (clients choose) or require. The default is off, and "
     "require as soon as keys are named.",
     [](Settings& s, Value v) -> std::string {
       const auto mode = parse_tls_mode(v);
       if (!mode) return mode.error();
       s.tls = *mode;
       return "";
     }},
    {"tls-psk", "FILE", "/etc/rnbd/keys.psk",
     "File of shared keys, a line NAME:HEX for each client, as rnbd-ctl keygen makes them; or "
     "credential:NAME, that of systemd.",
     [](Settings& s, Value v) { return set_key_file(s.tls_keys.psk, v); }},
    {"tls-certificates", "DIRECTORY", "/etc/rnbd/tls",
     "Directory with ca-cert.pem, server-cert.pem, server-key.pem and perhaps ca-crl.pem, as "
     "nbdkit's, and as rnbd-ctl certgen makes them; or credential:NAME.",
     [](Settings& s, Value v) { return set_key_file(s.tls_keys.certificates, v); }},
    {"tls-verify-peer", "on|off", "on",
     "Whether clients need a certificate that the CA has signed (default on). With off everybody "
     "may come in.",
     [](Settings& s, Value v) -> std::string {
       if (v != "on" && v != "off") return "'" + v + "' is neither on nor off";
       s.tls_keys.verify_peer = v == "on";
       return "";
     }},
    {"auth", "psk|none", "psk",
     "Whether clients that come without TLS, as over RDMA, must prove that they have a key of "
     "tls-psk (default none). It encrypts nothing.",
     [](Settings& s, Value v) -> std::string {
       const auto mode = parse_auth_mode(v);
       if (!mode) return mode.error();
       s.auth = *mode;
       return "";
     }},
    {"direct", nullptr, "true", "Bypass the page cache (O_DIRECT) for every export.",
     [](Settings& s, Value v) { return set_switch(s.direct, v); }},
    {"no-uring", nullptr, "true", "Use threads for files, and io_uring for nothing.",
     [](Settings& s, Value v) { return set_switch(s.no_uring, v); }},
};

}  // namespace

tl::expected<rtrs::AuthMode, std::string> parse_auth_mode(std::string_view value) {
  for (const rtrs::AuthMode mode : {rtrs::AuthMode::none, rtrs::AuthMode::psk}) {
    if (value == to_string(mode)) return mode;
  }
  return tl::unexpected("'" + std::string{value} + "' is neither psk nor none");
}

unsigned default_max_sessions(std::uint64_t memory) {
  constexpr std::uint64_t kFewest = 16, kMost = 1024, kQueueDepth = 256, kMaxIoSize = 256 * 1024;
  if (memory == 0) return kMost;
  const std::uint64_t each = 2 * rtrs::floor_of_path(kQueueDepth, kMaxIoSize);
  return static_cast<unsigned>(std::clamp(memory / 2 / each, kFewest, kMost));
}

unsigned default_max_connections(std::uint64_t memory, std::uint64_t descriptors) {
  constexpr std::uint64_t kFewest = 64, kMost = 8192, kMemoryOfEach = 100 * 1024;
  const std::uint64_t of_memory = memory == 0 ? kMost : memory / 8 / kMemoryOfEach;
  return static_cast<unsigned>(std::clamp(std::min(of_memory, descriptors / 2), kFewest, kMost));
}

/// The program raises its limit of descriptors as far as it may.
unsigned default_max_connections() {
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_max != RLIM_INFINITY;
  const auto descriptors = limited ? static_cast<std::uint64_t>(limit.rlim_max) : kUnlimited;
  return default_max_connections(rtrs::memory_of_machine(), descriptors);
}

/// Those of annexes stand behind the place of what outlives the server.
std::span<const SettingRule> setting_rules() {
  static const std::vector<SettingRule> all = [] {
    std::vector<SettingRule> rules{std::begin(kRules), std::end(kRules)};
    const auto place =
        std::ranges::find(rules, std::string_view{"state-directory"},
                          [](const auto& rule) { return std::string_view{rule.key}; });
    std::vector<SettingRule> more;
    for (const DaemonAnnex* annex : daemon_annexes())
      more.insert(more.end(), annex->settings.begin(), annex->settings.end());
    rules.insert(place + 1, more.begin(), more.end());
    return rules;
  }();
  return all;
}

std::string set_iops_limit(Limits& limits, const std::string& value) {
  return set_number(limits.iops, value, 1, kMostIops);
}

std::string set_bandwidth_limit(Limits& limits, const std::string& value) {
  return set_size(limits.bandwidth, value, 1, kUnlimited);
}

rtrs::TlsMode Settings::tls_mode() const {
  return tls.value_or(tls_keys.none() ? rtrs::TlsMode::off : rtrs::TlsMode::require);
}

}  // namespace rnbd
