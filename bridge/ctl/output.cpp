// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/output.hpp"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

int unwritten_because = 0;  ///< the errno of the first text that was not written; one thread speaks

void remember(bool written) {
  if (!written && unwritten_because == 0) unwritten_because = errno;
}

}  // namespace

void say(const std::string& text) {
  const std::string lines = readable_lines(text);
  remember(std::fwrite(lines.data(), 1, lines.size(), stdout) == lines.size());
}

void complain(const std::string& text, const std::string& command) {
  (void)is_written();
  const std::string who = command.empty() ? "rnbd-ctl: " : "rnbd-ctl " + command + ": ";
  std::fputs(readable_lines(who + text + "\n").c_str(), stderr);
}

void clear_terminal() { remember(std::fputs("\033[H\033[2J", stdout) >= 0); }

int leave_early(const EarlyExit& early) {
  if (early.status == 0)
    say(early.text);
  else
    std::fputs(readable_lines(early.text).c_str(), stderr);
  return early.status;
}

bool is_written() {
  remember(std::fflush(stdout) == 0);
  return unwritten_because == 0;
}

int with_output(int status, int unwritten) {
  if (is_written()) return status;
  if (unwritten_because != EPIPE) {  // whoever has closed it knows
    complain(std::string{"not all could be written to standard output: "} +
             std::strerror(unwritten_because));
  }
  return unwritten;
}

}  // namespace rnbd
