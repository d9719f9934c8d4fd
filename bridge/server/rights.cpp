// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/rights.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/uuid.hpp>
#include <charconv>
#include <cstring>
#include <optional>

#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

/// An IPv4 address is written as IPv6 does it, ::ffff:a.b.c.d.
using AddressBytes = std::array<unsigned char, 16>;

constexpr unsigned kMappedBits = 96;

struct Network {
  AddressBytes address{};
  unsigned bits = 128;
};

/// `v4`: it was written as IPv4.
std::optional<AddressBytes> parse_address(const std::string& text, bool& v4) {
  AddressBytes bytes{};
  v4 = text.find(':') == std::string::npos;
  if (!v4) {
    if (::inet_pton(AF_INET6, text.c_str(), bytes.data()) != 1) return std::nullopt;
    return bytes;
  }
  bytes[10] = bytes[11] = 0xFF;
  if (::inet_pton(AF_INET, text.c_str(), bytes.data() + 12) != 1) return std::nullopt;
  return bytes;
}

/// `10.0.0.0/24`, `fd00::/8`, or one address.
std::optional<Network> parse_network(std::string_view text) {
  const std::size_t slash = text.find('/');
  bool v4 = false;
  const auto address = parse_address(std::string{text.substr(0, slash)}, v4);
  if (!address) return std::nullopt;
  Network network{*address};
  if (slash == std::string_view::npos) return network;
  const std::string_view digits = text.substr(slash + 1);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), network.bits);
  if (error != std::errc{} || end != digits.data() + digits.size()) return std::nullopt;
  if (network.bits > (v4 ? 32U : 128U)) return std::nullopt;
  if (v4) network.bits += kMappedBits;
  return network;
}

bool lies_in(const AddressBytes& address, const Network& network) {
  for (unsigned bit = 0; bit < network.bits; ++bit) {
    const unsigned mask = 0x80U >> (bit % 8);
    if (((address[bit / 8] ^ network.address[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

/// Without the port, the brackets and the interface of IPv6.
std::optional<AddressBytes> address_of(std::string_view peer) {
  const std::size_t colon = peer.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  peer = peer.substr(0, colon);
  if (peer.starts_with('[') && peer.ends_with(']')) peer = peer.substr(1, peer.size() - 2);
  peer = peer.substr(0, peer.find('%'));
  bool v4 = false;
  return parse_address(std::string{peer}, v4);
}

bool matches(std::string_view pattern, const User& user) {
  if (pattern.starts_with('@')) {
    const auto network = parse_network(pattern.substr(1));
    const auto address = address_of(user.peer);
    return user.name.empty() && network && address && lies_in(*address, *network);
  }
  if (user.name.empty()) return false;
  if (!pattern.ends_with('*')) return pattern == user.name;
  return user.name.starts_with(pattern.substr(0, pattern.size() - 1));
}

bool any_matches(const std::vector<std::string>& patterns, const User& user) {
  return std::ranges::any_of(patterns, [&](const auto& each) { return matches(each, user); });
}

/// Needs no quotes.
bool is_plain(std::string_view value) {
  constexpr std::string_view kOthers = "-_.:/@*[]+%";
  return !value.empty() && std::ranges::all_of(value, [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kOthers.find(c) != std::string_view::npos;
  });
}

}  // namespace

Permission permission_of(const Rights& rights, const User& user) {
  if (!rights.given() || any_matches(rights.rw, user)) return Permission::write;
  return any_matches(rights.ro, user) ? Permission::read : Permission::none;
}

std::string fault_of_pattern(std::string_view pattern) {
  constexpr std::size_t kLongest = 63;  ///< bytes of an identity
  if (pattern.empty()) return "is empty";
  if (pattern.starts_with('@')) {
    return parse_network(pattern.substr(1)) ? "" : "is no address; write e.g. @10.0.0.0/24";
  }
  const std::string_view name =
      pattern.substr(0, pattern.size() - (pattern.ends_with('*') ? 1 : 0));
  if (name.find('*') != std::string_view::npos) return "has a * that is not at its end";
  if (name.size() > kLongest) return "is longer than 63 bytes";
  const bool usual = std::ranges::all_of(name, [](char c) { return c > 0x20 && c < 0x7F; }) &&
                     name.find_first_of("/@:,") == std::string_view::npos;
  return usual ? "" : "can be no user's name; write e.g. host1, vm-* or *";
}

std::string audit_line(
    std::string_view event,
    std::initializer_list<std::pair<std::string_view, std::string_view>> fields) {
  std::string line{event};
  for (const auto& [key, value] : fields) {
    line += ' ';
    line += key;
    line += '=';
    if (is_plain(value)) {
      line += value;
      continue;
    }
    line += '"';
    for (const char c : on_one_line(value)) {
      if (c == '"' || c == '\\') line += '\\';
      line += c;
    }
    line += '"';
  }
  return line;
}

/// The SHA-1 of both, as in UUIDs of version 5.
rtrs::wire::Uuid number_of_user(const rtrs::wire::Uuid& session, std::string_view user) {
  if (user.empty() || session == rtrs::wire::Uuid{}) return session;
  boost::uuids::uuid space{};
  static_assert(sizeof(space) == sizeof(session));
  std::memcpy(&space, &session, sizeof(space));
  const auto made = boost::uuids::name_generator_sha1{space}(user.data(), user.size());
  rtrs::wire::Uuid number{};
  std::memcpy(&number, &made, sizeof(number));
  return number;
}

}  // namespace rnbd
