// SPDX-License-Identifier: BSD-3-Clause
// rnbd-server: exports files and block devices to RNBD clients.
#include <cstdio>
#include <exception>

#include "bridge/daemon/logging.hpp"
#include "bridge/daemon/process.hpp"
#include "bridge/daemon/server/command_line.hpp"
#include "bridge/daemon/server/daemon.hpp"
#include "bridge/protocol/printable.hpp"

int main(int argc, char** argv) {
  if (!rnbd::open_standard_streams()) return 1;
  try {
    const auto invocation = rnbd::parse_command_line(argc, argv);
    if (!invocation) {
      const rnbd::EarlyExit& early = invocation.error();
      std::fputs(early.text.c_str(), early.status == 0 ? stdout : stderr);
      return early.status;
    }
    const int status = rnbd::run_daemon(*invocation);
    rnbd::finish_log();
    return status;
  } catch (const std::exception& error) {
    rnbd::finish_log();
    std::fprintf(stderr, "rnbd-server: cannot start: %s\n",
                 rnbd::on_one_line(error.what()).c_str());
    return 1;
  }
}
