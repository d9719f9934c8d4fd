// rnbd-server: exports files and block devices to RNBD clients.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <exception>

#include "bridge/daemon/command_line.hpp"
#include "bridge/daemon/daemon.hpp"

namespace {

/// A standard stream that is closed would give its number to the first file that is opened, and the
/// log would go into somebody's disk.
bool open_standard_streams() {
  int fd = 0;
  while (fd >= 0 && fd <= STDERR_FILENO) fd = ::open("/dev/null", O_RDWR);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (!open_standard_streams()) return 1;
  try {
    const auto invocation = rnbd::parse_command_line(argc, argv);
    if (!invocation) {
      const rnbd::EarlyExit& early = invocation.error();
      std::fputs(early.text.c_str(), early.status == 0 ? stdout : stderr);
      return early.status;
    }
    return rnbd::run_daemon(*invocation);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rnbd-server: cannot start: %s\n", error.what());
    return 1;
  }
}
