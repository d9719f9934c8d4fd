// SPDX-License-Identifier: BSD-3-Clause
// The user's settings for one server: parameters of the plugin, and options of the bridge.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/client/session.hpp"
#include "bridge/client/uri.hpp"
#include "bridge/protocol/option.hpp"
#include "rdma/client.hpp"

namespace rnbd {

inline constexpr unsigned kMaxPaths = 8;  ///< of a session

/// Settings of an annex, see annex.hpp.
struct AnnexConfig {
  virtual ~AnnexConfig() = default;
};

/// The settings of one disk. Disks with different ones may share a session.
struct DiskConfig {
  std::string device;                      ///< "" = the export name of each client decides
  wire::Uuid uuid{};                       ///< of the disk; zeros = any
  std::optional<wire::AccessMode> access;  ///< none: rw, and ro where the server allows no more
  GeometryOptions geometry;
};

/// The settings of a client, after all checks.
struct ClientConfig : DiskConfig {
  std::vector<rtrs::PathAddress> paths;
  bool paths_of_server = false;  ///< use the paths that it advertises, too
  /// The word of rnbd-WORD://, and the paths to each of the servers, the first of which has
  /// `paths`; none: there is one server.
  std::string several;
  std::vector<std::vector<rtrs::PathAddress>> servers;
  rtrs::ServerId server_id = 0;  ///< of the server; 0 = the one at the first path
  bool dynamic_export = false;
  std::string session_name;  ///< "" = made up for each session
  unsigned lanes = 0;        ///< 0 = chosen by the library
  bool event_loops = false;  ///< those of the program take lanes of disks
  rtrs::Duration spin{};     ///< 0 = off
  bool connect_now = false;
  rtrs::Duration connect_timeout = std::chrono::seconds{10};
  rtrs::Duration heartbeat = std::chrono::milliseconds{500};
  unsigned heartbeat_misses = 4;
  rtrs::PathPolicy policy = rtrs::PathPolicy::min_inflight;
  rtrs::Duration no_path_timeout = std::chrono::seconds{30};  ///< 0 = for ever
  int no_path_error = EIO;
  rtrs::Duration reconnect_min = std::chrono::milliseconds{100};
  rtrs::Duration reconnect_max = std::chrono::seconds{2};
  rtrs::Duration settle_time = std::chrono::seconds{10};
  std::optional<int> digest;  ///< 0 off, 1 headers, 2 headers and data; none: 2, or 0 with TLS
  bool header_digest() const { return digest.value_or(tls_default_digest()) >= 1; }
  bool data_digest() const { return digest.value_or(tls_default_digest()) >= 2; }
  rtrs::TlsMode tls = rtrs::TlsMode::off;
  rtrs::TlsKeys tls_keys;
  /// Both ends prove that they have this key; data go in clear.
  std::optional<rtrs::TlsKeys> auth_keys;
  bool extensions = true;                    ///< offer features that only rnbdkit peers know
  bool require_extension = false;            ///< refuse servers that do not know it
  std::uint32_t annex_features = 0;          ///< extension features that an annex offers
  std::shared_ptr<const AnnexConfig> annex;  ///< of one that has settings
  /// The settings of an annex. Null: they were not set.
  template <class T>
  const T* find() const {
    return dynamic_cast<const T*>(annex.get());
  }
  /// The same, to change them in this configuration and not in its copies.
  template <class T>
  T& part() {
    auto own = find<T>() != nullptr ? std::make_shared<T>(*find<T>()) : std::make_shared<T>();
    annex = own;
    return *own;
  }
  std::string control;  ///< absolute path of the control socket; "" = none
  /// How to list the server's exports with this program, for the message about a missing one.
  std::string how_to_list;

  /// `rnbd+tcp://host:port`, for messages.
  std::string server() const;
  /// server() and the keys, as words of a shell for commands that take the plugin's parameters.
  std::string server_and_keys() const;

 private:
  /// 0 with TLS, which has better checks of its own.
  int tls_default_digest() const { return tls == rtrs::TlsMode::off ? 2 : 0; }
};

/// `host:port`, for messages.
std::string host_and_port(const rtrs::PathAddress& path);

/// `round-robin`, `min-inflight`, `min-latency`.
///
/// Errors: a sentence that lists them.
tl::expected<rtrs::PathPolicy, std::string> parse_policy(std::string_view name);
std::string name_of(rtrs::PathPolicy policy);

/// All keys so far, in any order.
struct ClientDraft {
  ClientConfig config;
  std::optional<DeviceUri> uri;
  std::optional<HostPort> server;
  std::optional<rtrs::TransportKind> transport;
  std::optional<rtrs::TlsMode> tls;
  rtrs::TlsKeys auth_keys;
  std::vector<std::string> paths;
};

enum class OptionPlace : std::uint8_t {
  key,
  both,  ///< also behind the '?' of a URI
  uri,   ///< there only
};

struct ClientOption : OptionRow<ClientDraft> {
  OptionPlace place = OptionPlace::key;
};

/// Those that are keys, in the order of the help.
const std::vector<const ClientOption*>& client_options();

/// Collects `key=value` pairs in any order.
///
/// Errors: sentences that name the key and the remedy.
class ConfigReader {
 public:
  tl::expected<void, std::string> set(std::string_view key, std::string_view value);
  /// Ends the input: checks the combinations and fills in defaults.
  tl::expected<ClientConfig, std::string> complete() const;

 private:
  ClientDraft draft_;
};

/// `key=VALUE help`, one paragraph per key, for nbdkit's --help.
std::string config_help();

/// A unique name for a session: the host name and random digits.
std::string make_session_name();

}  // namespace rnbd
