// SPDX-License-Identifier: BSD-3-Clause
// The configuration file of rnbd-server, in TOML.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/daemon/server/settings.hpp"

namespace rnbd {

/// A sentence with file, line, column and key.
struct ConfigMistake {
  unsigned line = 0;
  unsigned column = 0;
  std::string text;
};

/// All mistakes in a file, in their order.
struct BadConfig {
  std::vector<ConfigMistake> mistakes;
  Settings rest;            ///< the correct settings
  bool unreadable = false;  ///< the content of the file is unknown
};

/// Reads a file.
tl::expected<Settings, BadConfig> load_config(const std::string& path);

/// The same for a text; `path` is only for the messages. Exports are in the order of the file.
tl::expected<Settings, BadConfig> parse_config(const std::string& text, const std::string& path);

}  // namespace rnbd
