// SPDX-License-Identifier: BSD-3-Clause
// The command line of rnbd-server.
#pragma once

#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/daemon/cli.hpp"
#include "bridge/daemon/server/config_file.hpp"
#include "bridge/daemon/server/settings.hpp"

namespace rnbd {

/// The command line's settings, with those of the configuration file under them.
struct Invocation {
  Settings settings;
  std::string config;  ///< the file; "" = none
  bool check_config = false;
  std::vector<ConfigMistake> mistakes;  ///< of the file; filled only for --check-config
  int ready_fd = -1;                    ///< -1 = none
  std::vector<std::string> words;       ///< the command line itself, for a reload
};

tl::expected<Invocation, EarlyExit> parse_command_line(int argc, const char* const* argv);

}  // namespace rnbd
