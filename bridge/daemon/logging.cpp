// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/logging.hpp"

#include <pthread.h>
#include <signal.h>
#include <spdlog/async_logger.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/details/os.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/base_sink.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "bridge/daemon/journal.hpp"
#include "bridge/protocol/printable.hpp"

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

/// Source: syslog(3).
int priority_of(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::debug:
      return 7;
    case spdlog::level::info:
      return 6;
    case spdlog::level::warn:
      return 4;
    case spdlog::level::err:
      return 3;
    default:
      return 5;
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

/// "2026-11-25 14:36:49.123 "
std::string local_time(spdlog::log_clock::time_point time) {
  const auto since_epoch = time.time_since_epoch();
  const auto milliseconds = std::chrono::floor<std::chrono::milliseconds>(since_epoch).count();
  const std::tm parts = spdlog::details::os::localtime(spdlog::log_clock::to_time_t(time));
  std::array<char, 32> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), "%F %T", &parts);
  std::snprintf(text.data() + size, text.size() - size, ".%03d ",
                static_cast<int>(milliseconds % 1000));
  return text.data();
}

/// The queue takes one text: the fields, each with a newline behind it, an empty line, the
/// sentence.
std::string in_one(const rtrs::LogFacts* facts, const std::string& text) {
  return (facts != nullptr ? journal_fields(*facts) : "") + '\n' + text;
}

struct Parts {
  std::string_view fields, text;
};
Parts parts_of(std::string_view one) {
  std::size_t end = 0;
  while (end < one.size() && one[end] != '\n') end = one.find('\n', end) + 1;
  return {one.substr(0, end), one.substr(std::min(end + 1, one.size()))};
}

using spdlog::details::thread_pool;

/// Lines that wait for standard error to take them; the oldest go first.
constexpr std::size_t kMaxWaiting = 1024;

/// One write per line, so that lines of several processes on one terminal do not mix.
///
/// Threads: the log's; wait_for_flush() any.
class StderrSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  StderrSink() {
    if (stderr_is_journal()) journal_.emplace();
  }

  /// The log with the queue. Before the first line.
  void come_from(thread_pool& queue) { queue_ = &queue; }

  std::uint64_t flushes() {
    const std::lock_guard lock{flush_mutex_};
    return flushes_;
  }
  void wait_for_flush(std::uint64_t after, std::chrono::milliseconds limit) {
    std::unique_lock lock{flush_mutex_};
    flushed_.wait_for(lock, limit, [&] { return flushes_ > after; });
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (const std::size_t dropped = queue_->overrun_counter(); dropped > dropped_) {
      write_line(message.time, spdlog::level::warn,
                 std::to_string(dropped - std::exchange(dropped_, dropped)) +
                     " lines of the log are missing here: standard error did not take them");
    }
    const auto [fields, text] = parts_of({message.payload.data(), message.payload.size()});
    const bool taken = journal_ && !fields.empty() &&
                       journal_->send(priority_of(message.level), on_one_line(text), fields);
    if (!taken) write_line(message.time, message.level, text);
  }
  void flush_() override {
    const std::lock_guard lock{flush_mutex_};
    ++flushes_;
    flushed_.notify_all();
  }

 private:
  void write_line(spdlog::log_clock::time_point time, spdlog::level::level_enum level,
                  std::string_view text) {
    std::string line = journal_
                           ? "<" + std::to_string(priority_of(level)) + ">"
                           : local_time(time) + program_invocation_short_name + ": " + word(level);
    line += on_one_line(text);
    line += '\n';
    std::size_t done = 0;
    while (done < line.size()) {
      const ssize_t n = ::write(STDERR_FILENO, line.data() + done, line.size() - done);
      if (n <= 0) return;  // there is nowhere to complain
      done += static_cast<std::size_t>(n);
    }
  }

  std::optional<Journal> journal_;  ///< it reads standard error
  thread_pool* queue_ = nullptr;
  std::size_t dropped_ = 0;  ///< as far as the log has told
  std::mutex flush_mutex_;
  std::condition_variable flushed_;
  std::uint64_t flushes_ = 0;
};

/// One thread, which leaves all signals to others.
std::shared_ptr<thread_pool> start_thread() {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  auto queue = std::make_shared<thread_pool>(kMaxWaiting, 1,
                                             [] { pthread_setname_np(pthread_self(), "log"); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return queue;
}

/// Its thread could be had.
std::atomic<bool> started{false};

struct Logging {
  Logging() {
    sink->come_from(*queue);
    started = true;
  }

  std::shared_ptr<StderrSink> sink = std::make_shared<StderrSink>();
  std::shared_ptr<thread_pool> queue = start_thread();
  std::shared_ptr<spdlog::async_logger> logger = std::make_shared<spdlog::async_logger>(
      "", sink, queue, spdlog::async_overflow_policy::overrun_oldest);
};

Logging& logging() {
  // Never destroyed: threads of a hanging backend may still log while the process leaves, and the
  // log's own thread may hang in a write.
  static auto* const instance = new Logging;
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

void start_logging(rtrs::LogLevel level) { logging().logger->set_level(level_of(level)); }

rtrs::Log log_function() {
  return [](rtrs::LogLevel level, const std::string& line) {
    if (!logging().logger->should_log(level_of(level))) return;
    const std::string one = in_one(rtrs::LogAbout::now(), line);
    logging().logger->log(level_of(level), spdlog::string_view_t{one});
  };
}

void announce(const std::string& line) {
  const std::string one = in_one(nullptr, line);
  logging().logger->log(spdlog::level::critical, spdlog::string_view_t{one});
  finish_log();
}

void finish_log(std::chrono::milliseconds limit) {
  if (!started) return;
  const std::uint64_t before = logging().sink->flushes();
  logging().logger->flush();
  logging().sink->wait_for_flush(before, limit);
}

}  // namespace rnbd
