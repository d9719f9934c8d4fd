// SPDX-License-Identifier: BSD-3-Clause
// The log when nobody reads it.
#include "bridge/daemon/logging.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

namespace rnbd::test::logging_test {

namespace {

/// Standard error is a small pipe, as long as this lives.
class PipedStderr {
 public:
  PipedStderr() : saved_{dup(STDERR_FILENO)} {
    std::array<int, 2> ends{};
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    REQUIRE(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 4096);
    REQUIRE(dup2(ends[1], STDERR_FILENO) >= 0);
    close(ends[1]);
    reader_ = ends[0];
  }
  ~PipedStderr() {
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    close(reader_);
  }
  PipedStderr(const PipedStderr&) = delete;
  PipedStderr& operator=(const PipedStderr&) = delete;

  std::string read_line() {
    std::string line;
    char letter = 0;
    while (read(reader_, &letter, 1) == 1 && letter != '\n') line += letter;
    return line;
  }

 private:
  int saved_;
  int reader_ = -1;
};

}  // namespace

TEST_CASE("log: whoever logs never waits for who reads, and what is dropped is told") {
  constexpr unsigned kLines = 5000;
  alarm(60);  // who does wait, waits for ever
  PipedStderr standard_error;
  start_logging(rtrs::LogLevel::info);
  for (unsigned i = 0; i < kLines; ++i) {
    log_function()(rtrs::LogLevel::info, "line " + std::to_string(i));
  }
  finish_log(std::chrono::milliseconds{50});

  unsigned told = 0;
  unsigned missing = 0;
  for (unsigned next = 0; next < kLines;) {
    const std::string line = standard_error.read_line();
    if (const auto at = line.find("lines of the log are missing here"); at != std::string::npos) {
      const auto number = line.rfind(' ', at - 2) + 1;
      missing += static_cast<unsigned>(std::stoul(line.substr(number)));
      continue;
    }
    const auto at = line.find(": line ");
    REQUIRE_MESSAGE(at != std::string::npos, line);
    const auto number = static_cast<unsigned>(std::stoul(line.substr(at + 7)));
    CHECK(number >= next);
    // Those that were dropped while this line was on its way are told in front of it, too.
    CHECK(number <= told + missing);
    ++told;
    next = number + 1;
  }
  CHECK(missing > 0);
  CHECK(told + missing == kLines);
  alarm(0);
}

}  // namespace rnbd::test::logging_test
