// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/metrics_address.hpp"

#include <charconv>

namespace rnbd {

tl::expected<MetricsAddress, std::string> parse_metrics_address(std::string_view text) {
  const auto fail = [&](const std::string& why) {
    return tl::unexpected("'" + std::string{text} + "': " + why);
  };
  MetricsAddress address;
  std::string_view rest = text;
  if (rest.starts_with('[')) {
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos) return fail("the bracket is not closed");
    address.host = rest.substr(1, end - 1);
    rest.remove_prefix(end + 1);
    if (!rest.starts_with(':')) return fail("the port is missing");
    rest.remove_prefix(1);
  } else if (const std::size_t colon = rest.rfind(':'); colon != std::string_view::npos) {
    if (rest.find(':') != colon) return fail("put an IPv6 address in brackets");
    if (colon > 0) address.host = rest.substr(0, colon);
    rest.remove_prefix(colon + 1);
  }
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), address.port);
  if (rest.empty() || error != std::errc{} || end != rest.data() + rest.size()) {
    return fail("the port is not a number from 0 to 65535 (0 = any free one)");
  }
  if (address.host.empty()) return fail("the address is missing");
  return address;
}

}  // namespace rnbd
