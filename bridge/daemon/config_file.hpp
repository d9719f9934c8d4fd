// The configuration file of rnbd-server, in TOML.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/daemon/settings.hpp"

namespace rnbd {

/// Everything that is wrong, one sentence each, with file, line, column and key.
using ConfigErrors = std::vector<std::string>;

/// Reads a file.
tl::expected<Settings, ConfigErrors> load_config(const std::string& path);

/// The same for a text; `path` is only for the messages.
tl::expected<Settings, ConfigErrors> parse_config(const std::string& text, const std::string& path);

}  // namespace rnbd
