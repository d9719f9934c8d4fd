// SPDX-License-Identifier: BSD-3-Clause
// A request to have a server's device as a disk of this machine, and the file that keeps it.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace rnbd {

struct Mapping {
  std::string name;
  std::string uri;
  std::string kernel = "nbd";             ///< or "nbd:3"
  std::vector<std::string> options = {};  ///< options of rnbd-bridge, without blanks
  std::string bridge = {};  ///< key of the bridge that it shares; "": it has a process of its own
  friend bool operator==(const Mapping&, const Mapping&) = default;
};

/// The file of rnbd-map@NAME.service, or of one disk of rnbd-maps@BRIDGE.service. Source:
/// systemd.exec(5), EnvironmentFile=.
std::string file_of(const Mapping& mapping);

/// Reads the text of file_of().
///
/// Errors: a sentence about a line of it.
tl::expected<Mapping, std::string> read_mapping(const std::string& name, const std::string& text);

/// The server, the credentials and the settings of the session, as the mapping writes them. Two
/// mappings with the same text can share a session. "": it needs a process of its own.
std::string session_text(const Mapping& mapping);

/// The key of the bridge for mappings with this session_text(), `HOST:PORT-DIGEST`; "" for "".
std::string bridge_key(const Mapping& mapping);

/// True for the form of a bridge_key(), which no mapping's name has.
bool is_bridge_key(std::string_view text);

}  // namespace rnbd
