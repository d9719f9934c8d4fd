// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/top.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <thread>

#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/output.hpp"
#include "bridge/ctl/view.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

using TopJson = nlohmann::ordered_json;
using std::chrono::steady_clock;

constexpr double kMega = 1e6, kMicrosecond = 1e3;  ///< bytes; nanoseconds

double number_of(const TopJson& object, const std::string& name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_number() ? found->get<double>() : 0;
}

/// Null: there is none.
TopJson field(const TopJson& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() ? *found : TopJson{};
}

double rounded(double value) { return std::round(value * 10) / 10; }

double increase(const TopJson& before, const TopJson& after, const std::string& name) {
  const double now = number_of(after, name);
  const double then = number_of(before, name);
  return now >= then ? now - then : now;
}

/// The object of a list that is about the same thing.
TopJson same_in(const TopJson& list, const TopJson& object,
                std::initializer_list<const char*> keys) {
  for (const TopJson& each : list) {
    if (std::ranges::all_of(
            keys, [&](const char* key) { return field(each, key) == field(object, key); }))
      return each;
  }
  return TopJson::object();
}

/// The mean of those that were timed; null: there were none.
TopJson mean_latency(const TopJson& before, const TopJson& after, const std::string& operation) {
  const double timed = increase(before, after, operation + "_timed");
  if (timed <= 0) return nullptr;
  return rounded(increase(before, after, operation + "_timed_ns") / timed / kMicrosecond);
}

}  // namespace

TopJson rates_between(const TopJson& before, const TopJson& after, double seconds) {
  TopJson rates{{"devices", TopJson::array()}, {"paths", TopJson::array()}};
  for (const TopJson& device : after["devices"]) {
    const TopJson then = same_in(before["devices"], device, {"device"});
    const auto rate = [&](const char* name, double unit) {
      return rounded(increase(then, device, name) / seconds / unit);
    };
    rates["devices"].push_back({{"device", field(device, "device")},
                                {"r/s", rate("read_ops", 1)},
                                {"w/s", rate("write_ops", 1)},
                                {"other/s", rate("other_ops", 1)},
                                {"rMB/s", rate("read_bytes", kMega)},
                                {"wMB/s", rate("write_bytes", kMega)},
                                {"r_await_us", mean_latency(then, device, "read")},
                                {"w_await_us", mean_latency(then, device, "write")},
                                {"in_flight", number_of(device, "in_flight")},
                                {"errors/s", rate("errors", 1)}});
  }
  for (const TopJson& path : after["paths"]) {
    const TopJson then = same_in(before["paths"], path, {"path", "session"});
    rates["paths"].push_back({{"path", field(path, "path")},
                              {"session", field(path, "session")},
                              {"state", field(path, "state")},
                              {"req/s", rounded(increase(then, path, "requests") / seconds)},
                              {"in_flight", number_of(path, "in_flight")},
                              {"latency_us", field(path, "latency_us")}});
  }
  return rates;
}

int run_top(const TopOptions& options,
            const std::function<tl::expected<std::string, std::string>()>& counters) {
  const bool on_terminal = ::isatty(STDOUT_FILENO) == 1 && !options.once && !options.json;
  TopJson before;
  steady_clock::time_point then;
  for (;;) {
    const auto answer = counters();
    const auto now = steady_clock::now();
    if (!answer) {
      complain(answer.error());
      return 1;
    }
    TopJson after = parse_answer(*answer);
    if (!after.is_object() || !after.contains("devices") || !after.contains("paths")) {
      complain(readable_text(after.contains("message") ? message_of(after) : "no counters"));
      return 1;
    }
    if (!before.is_null()) {
      const std::chrono::duration<double> passed = now - then;
      const TopJson rates = rates_between(before, after, std::max(passed.count(), 1e-3));
      if (on_terminal) clear_terminal();
      say(options.json ? readable_json(rates.dump()) + '\n' : readable(rates));
      if (!options.json && !on_terminal && !options.once) say("\n");
      if (!is_written()) return 1;
      if (options.once) return 0;
    }
    before = std::move(after);
    then = now;
    std::this_thread::sleep_for(std::chrono::duration<double>(options.interval));
  }
}

}  // namespace rnbd
