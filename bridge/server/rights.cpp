// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/rights.hpp"

#include <algorithm>
#include <array>
#include <boost/uuid/name_generator_sha1.hpp>
#include <boost/uuid/uuid.hpp>
#include <cstring>

#include "bridge/protocol/printable.hpp"
#include "rdma/network.hpp"

namespace rnbd {
namespace {

bool matches(std::string_view pattern, const User& user) {
  if (pattern.starts_with('@')) {
    const auto network = rtrs::parse_network(pattern.substr(1));
    return user.name.empty() && network && rtrs::lies_in(user.peer, *network);
  }
  if (user.name.empty()) return false;
  if (!pattern.ends_with('*')) return pattern == user.name;
  return user.name.starts_with(pattern.substr(0, pattern.size() - 1));
}

bool any_matches(const std::vector<std::string>& patterns, const User& user) {
  return std::ranges::any_of(patterns, [&](const auto& each) { return matches(each, user); });
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
    return rtrs::parse_network(pattern.substr(1)) ? "" : "is no address; write e.g. @10.0.0.0/24";
  }
  const std::string_view name =
      pattern.substr(0, pattern.size() - (pattern.ends_with('*') ? 1 : 0));
  if (name.find('*') != std::string_view::npos) return "has a * that is not at its end";
  if (name.size() > kLongest) return "is longer than 63 bytes";
  const bool usual = std::ranges::all_of(name, [](char c) { return c > 0x20 && c < 0x7F; }) &&
                     name.find_first_of("/@:,") == std::string_view::npos;
  return usual ? "" : "can be no user's name; write e.g. host1, vm-* or *";
}

std::string audit_line(std::string_view event, rtrs::AuditFields fields) {
  std::string line{event};
  for (const auto& [key, value] : fields) {
    line += rtrs::audit_line("", {{key, on_one_line(value)}});
  }
  return line;
}

/// The SHA-1 of both, as in UUIDs of version 5.
rtrs::wire::Uuid number_of_user(const rtrs::wire::Uuid& session, std::string_view user) {
  if (user.empty() || session == rtrs::wire::Uuid{}) return session;
  boost::uuids::uuid space{};
  static_assert(sizeof(space) == sizeof(session));
  std::ranges::copy(session, space.begin());
  const auto made = boost::uuids::name_generator_sha1{space}(user.data(), user.size());
  rtrs::wire::Uuid number{};
  std::memcpy(&number, &made, sizeof(number));
  return number;
}

}  // namespace rnbd
