// SPDX-License-Identifier: BSD-3-Clause
// The settings of rnbd-server, from its command line and its configuration file alike.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/protocol/option.hpp"
#include "bridge/server/catalogue.hpp"
#include "bridge/server/rights.hpp"
#include "rdma/core/time.hpp"
#include "rdma/log.hpp"
#include "rdma/server.hpp"
#include "rdma/tls.hpp"

namespace rnbd {

/// Clients for which a machine has memory, half of which may be theirs: with default options over
/// TCP, and as much beside it to lend.
///
/// Units: `memory` in bytes; 0 = unknown.
unsigned default_max_sessions(std::uint64_t memory);
/// Connections for which there is memory, and half of the descriptors that the program may have.
///
/// Units: as above.
unsigned default_max_connections(std::uint64_t memory, std::uint64_t descriptors);
/// Of this machine and process.
unsigned default_max_connections();

struct Settings {
  std::vector<rtrs::ListenAddress> listen;
  Directions directions;
  std::vector<ExportSpecification> exports;
  std::string search_path;
  Rights search_rights;
  std::string state_directory;                    ///< "" = the default, if it can be used
  std::map<std::string, std::string> of_annexes;  ///< by the keys of their rules
  std::string pid_file;
  std::string control;  ///< a path; "" = no control socket
  std::string metrics;  ///< as parse_metrics_address() takes it; "" = they are not served
  rtrs::LogLevel log_level = rtrs::LogLevel::info;
  unsigned reactors = 0;
  std::uint32_t queue_depth = 256;
  std::uint32_t max_io_size = 256 * 1024;  ///< bytes
  std::uint64_t memory_limit = 0;          ///< bytes; 0 = chosen by the server
  unsigned max_sessions = default_max_sessions(rtrs::memory_of_machine());
  unsigned max_sessions_per_user = 0;       ///< 0 = max_sessions
  std::uint64_t memory_limit_per_user = 0;  ///< bytes; 0 = the memory limit
  unsigned max_connections = default_max_connections();
  Limits session_limits;  ///< of each session's requests
  rtrs::Duration heartbeat = std::chrono::milliseconds{500};
  rtrs::Duration handshake_timeout = std::chrono::seconds{10};
  bool no_digest = false;
  bool always_invalidate = false;
  bool direct = false;
  bool no_uring = false;
  std::optional<rtrs::TlsMode> tls;  ///< none: require if there are keys
  rtrs::TlsKeys tls_keys;
  rtrs::TlsMode tls_mode() const;
  rtrs::AuthMode auth = rtrs::AuthMode::none;
};

/// `--queue-depth 64` on the command line, or `queue-depth = 64` in the table [server] of the file.
using SettingRule = OptionRow<Settings>;

std::span<const SettingRule> setting_rules();

/// `off`, `on` or `require`. Errors: a sentence that lists them.
tl::expected<rtrs::TlsMode, std::string> parse_tls_mode(std::string_view value);

/// `psk` or `none`. Errors: a sentence that lists them.
tl::expected<rtrs::AuthMode, std::string> parse_auth_mode(std::string_view value);

/// `tcp:HOST[:PORT][,non-optimized][,tls=off|on|require][,auth=psk|none][,from=NETWORK]`, with IPv6
/// addresses in brackets; an empty host or `*` is every address.
///
/// Errors: a sentence that shows the right form.
tl::expected<rtrs::ListenAddress, std::string> parse_listen(std::string_view text);

/// Adds an address that clients can use, in the form of parse_advertised(). "" or the mistake.
std::string add_advertised(Directions& target, const std::string& value);
/// Sets the place of an export of another server, in the form of parse_referral(). "" or the
/// mistake.
std::string set_referral(Referral& target, const std::string& uri);

/// `NAME=STORAGE[,ro][,direct][,rw=USER][,ro=USER][,iops-limit=N][,bandwidth-limit=SIZE]
/// [,description=TEXT]`; the users may be repeated.
///
/// Errors: a sentence that shows the right form.
tl::expected<ExportSpecification, std::string> parse_export(std::string_view text);

/// Sets a limit per second, in operations or in bytes. Errors: the mistake; "": it is set.
std::string set_iops_limit(Limits& limits, const std::string& value);
std::string set_bandwidth_limit(Limits& limits, const std::string& value);

/// The contradiction between settings, as a sentence with the cure; "" = none.
std::string contradiction_in(const Settings& settings);
/// A warning about dangerous settings, or "".
std::string doubt_about(const Settings& settings);

/// True when only this machine can connect.
bool is_loopback(const rtrs::ListenAddress& address);

}  // namespace rnbd
