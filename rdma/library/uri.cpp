// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/uri.hpp"

#include <cerrno>
#include <charconv>

namespace rtrs::library {
namespace {

auto invalid(std::string text) { return tl::unexpected(Failure{EINVAL, std::move(text)}); }

/// Cuts the prefix off; false: there is none.
bool consume(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool is_port(std::string_view text, std::uint16_t& port) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, port);
  return error == std::errc{} && stop == end && !text.empty();
}

/// Where a host ends and ":PORT" may begin; npos: there is no end.
std::size_t end_of_host(std::string_view text) {
  if (text.starts_with('[')) {
    const auto bracket = text.find(']');
    return bracket == std::string_view::npos ? bracket : bracket + 1;
  }
  const auto colon = text.find(':');
  return colon == std::string_view::npos ? text.size() : colon;
}

std::string without_brackets(std::string_view host) {
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return std::string{host};
}

}  // namespace

tl::expected<PathAddress, Failure> parse_path(std::string_view text, TransportKind transport) {
  const std::string whole{text};
  PathAddress path;
  path.transport = transport;
  if (consume(text, "tcp:")) {
    path.transport = TransportKind::tcp;
  } else if (consume(text, "rdma:")) {
    path.transport = TransportKind::rdma;
  }
  if (const auto at = text.find('@'); at != std::string_view::npos) {
    path.source = without_brackets(text.substr(0, at));
    text.remove_prefix(at + 1);
  }
  const std::size_t end = end_of_host(text);
  if (end == 0 || end == std::string_view::npos) {
    return invalid("'" + whole + "' is no address: write HOST:PORT, or [IPV6-ADDRESS]:PORT");
  }
  path.host = without_brackets(text.substr(0, end));
  text.remove_prefix(end);
  if (text.empty()) return path;
  if (!consume(text, ":") || !is_port(text, path.port)) {
    return invalid("the port in '" + whole + "' is no number from 0 to 65535");
  }
  return path;
}

tl::expected<Uri, Failure> parse_uri(std::string_view text) {
  Uri uri;
  TransportKind transport = TransportKind::rdma;
  std::string_view rest = text;
  if (consume(rest, "rtrs+tcp://")) {
    transport = TransportKind::tcp;
  } else if (!consume(rest, "rtrs://")) {
    return invalid(
        "'" + std::string{text} +
        "' names no server: write rtrs+tcp://HOST:PORT (TCP) or rtrs://HOST:PORT (RDMA)");
  }
  if (const auto slash = rest.find('/'); slash != std::string_view::npos) {
    uri.name = rest.substr(slash + 1);
    rest = rest.substr(0, slash);
  }
  while (true) {
    const auto comma = rest.find(',');
    auto path = parse_path(rest.substr(0, comma), transport);
    if (!path) return tl::unexpected(path.error());
    uri.paths.push_back(std::move(*path));
    if (comma == std::string_view::npos) return uri;
    rest.remove_prefix(comma + 1);
  }
}

tl::expected<PathPolicy, Failure> parse_policy(std::string_view text) {
  if (text == "min-inflight") return PathPolicy::min_inflight;
  if (text == "round-robin") return PathPolicy::round_robin;
  if (text == "min-latency") return PathPolicy::min_latency;
  return invalid("'" + std::string{text} +
                 "' is no policy: choose min-inflight, round-robin or min-latency");
}

}  // namespace rtrs::library
