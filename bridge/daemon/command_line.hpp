// The command line of rnbd-server.
#pragma once

#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "bridge/daemon/cli.hpp"
#include "bridge/daemon/settings.hpp"

namespace rnbd {

/// What the command line asks for, with the configuration file's settings under its own.
struct Invocation {
  Settings settings;
  bool check_config = false;
  int ready_fd = -1;  ///< -1 = none
};

tl::expected<Invocation, EarlyExit> parse_command_line(int argc, const char* const* argv);

}  // namespace rnbd
