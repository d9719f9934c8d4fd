// SPDX-License-Identifier: BSD-3-Clause
// The address that serves metrics: the value of --metrics.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace rnbd {

struct MetricsAddress {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;  ///< 0 = any free one
};

/// `PORT`, `HOST:PORT` or `[IPV6]:PORT`. Without a host it is 127.0.0.1; `*` is every address.
///
/// Errors: a sentence that names the mistake.
tl::expected<MetricsAddress, std::string> parse_metrics_address(std::string_view text);

}  // namespace rnbd
