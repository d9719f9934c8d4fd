// What the user said on nbdkit's command line.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/client/session.hpp"
#include "bridge/client/uri.hpp"
#include "rdma/client.hpp"

namespace rnbd::plugin {

/// Everything the plugin needs to know, checked.
struct Config {
  std::vector<rtrs::PathAddress> paths;
  std::string device;                      ///< "" = the export name of each client decides
  std::optional<wire::AccessMode> access;  ///< none: rw, and ro where the server allows no more
  bool dynamic_export = false;
  std::string session_name;  ///< "" = made up for each session
  unsigned lanes = 0;        ///< 0 = chosen by the library
  bool connect_now = false;
  rtrs::Duration connect_timeout = std::chrono::seconds{10};
  rtrs::Duration heartbeat = std::chrono::milliseconds{500};
  unsigned heartbeat_misses = 5;
  bool header_digest = true;
  bool data_digest = true;
  bool extensions = true;  ///< offer what only rnbdkit peers know
  GeometryOptions geometry;

  /// `rnbd+tcp://host:port`, for messages.
  std::string server() const;
};

/// Collects `key=value` pairs in any order.
///
/// Errors: sentences that name the key and say what to write.
class ConfigReader {
 public:
  tl::expected<void, std::string> set(std::string_view key, std::string_view value);
  /// All pairs were given: checks what belongs together and fills in defaults.
  tl::expected<Config, std::string> complete() const;

 private:
  Config config_;
  std::optional<DeviceUri> uri_;
  std::optional<HostPort> server_;
  std::optional<rtrs::TransportKind> transport_;
  std::vector<std::string> paths_;
};

/// One line per key, as nbdkit's --help shows them.
extern const char kConfigHelp[];

/// A name for a session that no other program will use: host name and random digits.
std::string make_session_name();

}  // namespace rnbd::plugin
