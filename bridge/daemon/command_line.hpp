// The command line of rnbd-server.
#pragma once

#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "bridge/daemon/settings.hpp"

namespace rnbd {

/// What the command line asks for, with the configuration file's settings under its own.
struct Invocation {
  Settings settings;
  bool check_config = false;
  int ready_fd = -1;  ///< -1 = none
};

/// Why the program ends before it has begun: `--help`, or a mistake.
struct EarlyExit {
  int status = 0;    ///< 0 help or version, 1 wrong configuration file, 2 wrong command line
  std::string text;  ///< for standard output when status is 0, else for standard error
};

tl::expected<Invocation, EarlyExit> parse_command_line(int argc, const char* const* argv);

}  // namespace rnbd
