// SPDX-License-Identifier: BSD-3-Clause
// The addresses of --listen and --advertise, and those of other servers.
#include <algorithm>
#include <charconv>

#include "bridge/client/directions.hpp"
#include "bridge/client/uri.hpp"
#include "bridge/daemon/server/settings.hpp"
#include "rdma/host_name.hpp"
#include "rdma/path_list.hpp"

namespace rnbd {
namespace {

/// "" or the mistake.
std::string apply_listen_option(rtrs::ListenAddress& address, std::string_view option) {
  constexpr std::string_view kTls = "tls=", kAuth = "auth=", kFrom = "from=";
  if (option == "non-optimized") {
    address.access = rtrs::wire::PathAccess::non_optimized;
    return "";
  }
  if (option.starts_with(kAuth)) {
    const auto mode = parse_auth_mode(option.substr(kAuth.size()));
    if (!mode) return "auth= " + mode.error();
    address.auth = *mode;
    return "";
  }
  if (option.starts_with(kFrom)) {
    const auto network = rtrs::parse_network(option.substr(kFrom.size()));
    if (!network) return "from= is followed by a network; write e.g. from=10.0.0.0/24";
    address.from.push_back(*network);
    return "";
  }
  if (!option.starts_with(kTls)) {
    return "unknown option behind the comma; non-optimized, tls=off|on|require, auth=psk|none and "
           "from=NETWORK are known";
  }
  const auto mode = parse_tls_mode(option.substr(kTls.size()));
  if (!mode) return "tls= " + mode.error();
  address.tls = *mode;
  return "";
}

}  // namespace

tl::expected<rtrs::ListenAddress, std::string> parse_listen(std::string_view text) {
  const auto fail = [&](const std::string& why) {
    return tl::unexpected("'" + std::string{text} + "': " + why);
  };
  rtrs::ListenAddress address;
  const std::size_t scheme_end = std::min(text.find(':'), text.size());
  const std::string_view scheme = text.substr(0, scheme_end);
  if (scheme == "rdma") {
    address.transport = rtrs::TransportKind::rdma;
  } else if (scheme != "tcp") {
    return fail(
        "an address begins with its transport; write e.g. tcp:127.0.0.1:1234 or "
        "rdma:10.0.0.1:1234");
  }
  std::string_view rest = text.substr(std::min(scheme_end + 1, text.size()));
  std::size_t comma = std::min(rest.find(','), rest.size());
  std::string_view options = rest.substr(comma);
  rest = rest.substr(0, comma);
  while (!options.empty()) {
    options.remove_prefix(1);
    comma = std::min(options.find(','), options.size());
    const std::string wrong = apply_listen_option(address, options.substr(0, comma));
    if (!wrong.empty()) return fail(wrong);
    options.remove_prefix(comma);
  }
  if (rest.starts_with('[')) {
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos)
      return fail("the bracket of the IPv6 address is not closed; write e.g. tcp:[::1]:1234");
    const auto host = parse_local_host(rest.substr(1, end - 1));
    if (!host) return fail(host.error());
    address.host = *host;
    rest.remove_prefix(end + 1);
  } else {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    if (rest.find(':', std::min(colon + 1, rest.size())) != std::string_view::npos)
      return fail("put an IPv6 address in brackets; write e.g. tcp:[::1]:1234");
    address.host = rest.substr(0, colon);
    rest.remove_prefix(colon);
    const std::string wrong = rtrs::complaint_about_host_name(address.host);
    if (!wrong.empty()) return fail(wrong);
  }
  if (rest.empty()) {
    if (address.host.empty()) return fail("the address is missing; write e.g. tcp:127.0.0.1:1234");
    return address;
  }
  if (!rest.starts_with(':'))
    return fail("only a colon and a port may follow; write e.g. tcp:[::1]:1234");
  const std::string port{rest.substr(1)};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (port.empty() || error != std::errc{} || end != port.data() + port.size()) {
    return fail("the port '" + port + "' is not a number from 0 to 65535 (0 = any free one)");
  }
  return address;
}

std::string add_advertised(Directions& target, const std::string& value) {
  const auto path = parse_advertised(value);
  if (!path) return path.error();
  std::string address = rtrs::to_string(*path);
  if (std::ranges::find(target.paths, address) != target.paths.end()) {
    return "'" + value + "' is there twice; leave one out";
  }
  if (target.paths.size() >= kMaxAdvertised) {
    return "a session has at most " + std::to_string(kMaxAdvertised) +
           " paths; advertise no more addresses";
  }
  target.paths.push_back(std::move(address));
  return "";
}

std::string set_referral(Referral& target, const std::string& uri) {
  const auto parsed = parse_referral(uri);
  if (!parsed) return parsed.error();
  target.uri = uri;
  return "";
}

bool is_loopback(const rtrs::ListenAddress& address) {
  return address.host == "localhost" || address.host == "::1" || address.host.starts_with("127.");
}

}  // namespace rnbd
