// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/storage_watch.hpp"

#include "bridge/protocol/printable.hpp"
#include "bridge/server/attempt.hpp"
#include "rdma/log_about.hpp"

namespace rnbd {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kEvery{5};

std::string in_seconds(nanoseconds time) {
  return std::to_string(std::chrono::round<std::chrono::seconds>(time).count()) + " seconds";
}

}  // namespace

std::vector<Standstills::Line> Standstills::look(
    const std::vector<rtrs::ServerSessionStatus>& sessions, nanoseconds passed) {
  std::vector<Line> lines;
  std::map<Key, Device> now;
  for (const auto& session : sessions) {
    for (const auto& item : session.items) {
      const Key key{session.name, item.name};
      const auto before = devices_.find(key);
      Device& device = now[key];
      device = before != devices_.end() ? before->second : Device{.ended = item.ended};
      look_at(key, item, device, passed, lines);
    }
  }
  devices_ = std::move(now);
  return lines;
}

void Standstills::look_at(const Key& key, const rtrs::SessionItem& item, Device& device,
                          nanoseconds passed, std::vector<Line>& lines) {
  const bool was_busy = std::exchange(device.busy, item.requests > 0);
  const auto say = [&](rtrs::LogLevel level, const char* event, const std::string& what) {
    lines.push_back({level,
                     "the storage of " + in_quotes(key.second) + " (session " +
                         in_quotes(key.first) + ") " + what,
                     event, key.first, key.second});
  };
  if (item.ended != device.ended) {
    if (device.told > nanoseconds{0}) {
      say(rtrs::LogLevel::info, "storage_goes_on",
          "answers again, after " + in_seconds(device.still + passed));
    }
    device.ended = item.ended;
    device.still = device.told = {};
  } else if (device.busy && was_busy) {
    device.still += passed;
    if (device.still < kFirst || device.still < device.told * 2) return;
    device.told = device.still;
    say(rtrs::LogLevel::warning, "storage_stands",
        "has ended none of its " + std::to_string(item.requests) +
            (item.requests == 1 ? " request" : " requests") + " for " + in_seconds(device.still) +
            "; they are waited for");
  }
}

StorageWatch::StorageWatch(Look look, rtrs::Log log)
    : look_{std::move(look)}, log_{std::move(log)}, thread_{[this](const std::stop_token& end) {
        run(end);
      }} {}

void StorageWatch::run(const std::stop_token& end) {
  auto then = steady_clock::now();
  std::unique_lock lock{mutex_};
  for (;;) {
    woken_.wait_for(lock, end, kEvery, [] { return false; });
    if (end.stop_requested()) return;
    const auto now = steady_clock::now();
    // A lack of memory now may be over next time.
    attempt([&] {
      for (const auto& line : standstills_.look(look_(), now - then)) {
        const rtrs::LogAbout about{
            {.event = line.event, .session = line.session, .device = line.device}};
        log_(line.level, line.text);
      }
    });
    then = now;
  }
}

}  // namespace rnbd
