// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl SOCKET top: what devices and paths do now.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tl/expected.hpp>

namespace rnbd {

/// The rates between two answers to `counters`, `seconds` apart, which are more than 0: an
/// object with the lists `devices` and `paths`. Counters that went back begin anew.
nlohmann::ordered_json rates_between(const nlohmann::ordered_json& before,
                                     const nlohmann::ordered_json& after, double seconds);

struct TopOptions {
  double interval = 1;  ///< seconds
  bool once = false;    ///< one interval, then it ends
  bool json = false;    ///< a line of JSON per interval
};

/// Shows it until the program does not answer. Returns the exit status.
int run_top(const TopOptions& options,
            const std::function<tl::expected<std::string, std::string>()>& counters);

}  // namespace rnbd
