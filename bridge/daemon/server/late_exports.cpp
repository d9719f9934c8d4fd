// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/late_exports.hpp"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "bridge/daemon/logging.hpp"
#include "bridge/protocol/printable.hpp"
#include "bridge/server/attempt.hpp"
#include "bridge/server/services.hpp"
#include "rdma/log_about.hpp"

namespace rnbd {
namespace {

using std::chrono::steady_clock;

/// Before the first client, for storage in use. Linux's clients do not ask again by themselves when
/// they were refused; those of exports that are free wait along.
constexpr std::chrono::seconds kStartPatience{3};
constexpr std::chrono::milliseconds kOften{50};  ///< between two attempts, meanwhile
constexpr std::chrono::seconds kEvery{1};        ///< and afterwards, at the soonest
/// Each attempt looks for similar names in the folder of what is missing. A thousand of them must
/// not keep a CPU busy: it takes a fiftieth of the time, until an attempt is made each half minute.
constexpr unsigned kShare = 50;
constexpr std::chrono::seconds kRarely{30};
constexpr std::chrono::minutes kRemindEvery{10};  ///< the log

constexpr std::size_t kNamesAnnounced = 8;

void warn(const std::string& text) { log_function()(rtrs::LogLevel::warning, text); }

/// By name; that of the search path is empty.
using Waiting = std::map<std::string, ExportStatus>;

Waiting waiting_of(const ExportCatalogue& catalogue) {
  Waiting waiting;
  for (const ExportStatus& status : catalogue.exports()) {
    if (status.waits()) waiting.emplace(status.name, status);
  }
  ExportStatus search_path;
  search_path.trouble = catalogue.files().trouble();
  if (search_path.waits()) waiting.emplace("", search_path);
  return waiting;
}

std::string subject(const std::string& name) {
  return name.empty() ? "what is below the search path" : "export " + in_quotes(name);
}

void tell_of(const std::string& name, const ExportStatus& status) {
  const rtrs::LogAbout about{{.event = "export_waits", .device = name}};
  warn(subject(name) + " is not served yet, and who opens it is told " +
       (status.in_use ? "that it is busy: " : "to try again later: ") + status.trouble +
       (status.in_use ? " (what a server that was killed has begun keeps it until it has ended)"
                      : "; it is tried again every second"));
}

bool some_in_use(const ExportCatalogue& catalogue) {
  return std::ranges::any_of(catalogue.exports(), &ExportStatus::in_use);
}

}  // namespace

std::string describe_exports(const ExportCatalogue& catalogue) {
  std::string text;
  const auto exports = catalogue.exports();
  for (std::size_t n = 0; n < exports.size() && n < kNamesAnnounced; ++n) {
    const ExportStatus& status = exports[n];
    text += (n > 0 ? ", " : "") + status.name;
    text += status.waits()
                ? " (waiting for its storage)"
                : " (" + size_text(status.size) + (status.read_only ? ", read-only)" : ")");
  }
  if (exports.size() > kNamesAnnounced)
    text += " and " + std::to_string(exports.size() - kNamesAnnounced) + " more";
  return text;
}

void tell_what_is_in_use(const ExportCatalogue& catalogue, const std::string& what_then) {
  for (const ExportStatus& status : catalogue.exports()) {
    if (status.in_use) {
      warn("export " + in_quotes(status.name) + ": " + status.trouble + "; " + what_then);
    }
  }
}

void wait_for_storage(ExportCatalogue& catalogue) {
  const auto until = steady_clock::now() + kStartPatience;
  tell_what_is_in_use(catalogue, "waiting for it");
  while (some_in_use(catalogue) && steady_clock::now() < until) {
    std::this_thread::sleep_for(kOften);
    catalogue.open_waiting();
  }
}

struct LateExports::Impl {
  ExportCatalogue& catalogue;
  std::function<void()> on_change;
  Waiting told{};
  steady_clock::time_point told_at{};
  std::mutex mutex{};
  std::condition_variable_any woken{};
  std::jthread thread{};

  void run(const std::stop_token& end) {
    attempt([&] { tell(); });
    std::unique_lock lock{mutex};
    steady_clock::duration pause = kEvery;
    while (catalogue.waits()) {
      woken.wait_for(lock, end, pause, [] { return false; });
      if (end.stop_requested()) return;
      const auto began = steady_clock::now();
      attempt([&] { look(); });  // what it lacks now it may have next time
      const auto took = steady_clock::now() - began;
      pause = std::clamp<steady_clock::duration>(kShare * took, kEvery, kRarely);
    }
  }

  void look() {
    if (catalogue.open_waiting()) {
      tell();
      on_change();
    } else if (steady_clock::now() > told_at + kRemindEvery) {
      told.clear();
      tell();
    }
  }

  /// Those that the log does not name yet.
  void tell() {
    told_at = steady_clock::now();
    const Waiting now = waiting_of(catalogue);
    for (const auto& [name, status] : now) {
      const auto known = told.find(name);
      if (known == told.end() || known->second.trouble != status.trouble) tell_of(name, status);
    }
    for (const auto& [name, status] : told) {
      if (!now.contains(name)) {
        const rtrs::LogAbout about{{.event = "export_served", .device = name}};
        log_function()(rtrs::LogLevel::info, subject(name) + " is served now");
      }
    }
    told = now;
  }
};

LateExports::LateExports(ExportCatalogue& catalogue, std::function<void()> on_change)
    : impl_{new Impl{catalogue, std::move(on_change)}} {
  if (!catalogue.waits()) return;
  impl_->thread =
      std::jthread{[impl = impl_.get()](const std::stop_token& end) { impl->run(end); }};
}

LateExports::~LateExports() = default;

}  // namespace rnbd
