// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl SOCKET top: the present rates of devices and paths.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tl/expected.hpp>

namespace rnbd {

/// The rates between two answers to `counters`, which are `seconds` > 0 apart: an object with the
/// lists `devices` and `paths`. A counter that went back has started from 0.
nlohmann::ordered_json rates_between(const nlohmann::ordered_json& before,
                                     const nlohmann::ordered_json& after, double seconds);

struct TopOptions {
  double interval = 1;  ///< seconds
  bool once = false;    ///< ends after one interval
  bool json = false;    ///< a line of JSON per interval
};

/// Shows the rates until the program does not answer. Returns the exit status.
int run_top(const TopOptions& options,
            const std::function<tl::expected<std::string, std::string>()>& counters);

}  // namespace rnbd
