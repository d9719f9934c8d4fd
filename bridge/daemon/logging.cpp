#include "bridge/daemon/logging.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

namespace rnbd {
namespace {

/// True when standard error is the journal's socket.
/// Source: systemd.exec(5), JOURNAL_STREAM.
bool stderr_is_journal() {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  unsigned long long device = 0;
  unsigned long long inode = 0;
  return stream != nullptr && std::sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
         ::fstat(STDERR_FILENO, &status) == 0 && status.st_dev == device && status.st_ino == inode;
}

/// Source: sd-daemon(3), prefixes like SD_WARNING.
const char* journal_prefix(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug:
      return "<7>";
    case spdlog::level::info:
      return "<6>";
    case spdlog::level::warn:
      return "<4>";
    case spdlog::level::err:
      return "<3>";
    default:
      return "<5>";
  }
}

const char* word(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug:
      return "debug: ";
    case spdlog::level::warn:
      return "warning: ";
    case spdlog::level::err:
      return "error: ";
    default:
      return "";
  }
}

/// One write per line, so that lines of several processes on one terminal do not mix.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  StderrSink() : journal_{stderr_is_journal()} {}

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    std::string line = journal_ ? journal_prefix(message.level)
                                : std::string{program_invocation_short_name} + ": ";
    if (!journal_) line += word(message.level);
    line.append(message.payload.data(), message.payload.size());
    line += '\n';
    std::size_t done = 0;
    while (done < line.size()) {
      const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
      if (n <= 0) return;  // there is nowhere to complain
      done += static_cast<std::size_t>(n);
    }
  }
  void flush_() override {}

 private:
  bool journal_;
};

spdlog::logger& logger() {
  // Never destroyed: threads of a hanging backend may still log while the process leaves.
  static auto* const instance = new spdlog::logger{"", std::make_shared<StderrSink>()};
  return *instance;
}

spdlog::level::level_enum level_of(rtrs::LogLevel level) {
  switch (level) {
    case rtrs::LogLevel::debug:
      return spdlog::level::debug;
    case rtrs::LogLevel::info:
      return spdlog::level::info;
    case rtrs::LogLevel::warning:
      return spdlog::level::warn;
    case rtrs::LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

}  // namespace

void start_logging(rtrs::LogLevel level) { logger().set_level(level_of(level)); }

rtrs::Log log_function() {
  return [](rtrs::LogLevel level, const std::string& line) {
    logger().log(level_of(level), spdlog::string_view_t{line});
  };
}

void announce(const std::string& line) {
  logger().log(spdlog::level::critical, spdlog::string_view_t{line});
}

}  // namespace rnbd
