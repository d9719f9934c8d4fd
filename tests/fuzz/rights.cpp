// SPDX-License-Identifier: BSD-3-Clause
// Input: a line with a user's name, a line with an address, then a configuration file of
// rnbd-server.
#include <algorithm>
#include <string>
#include <string_view>

#include "bridge/daemon/server/config_file.hpp"
#include "bridge/daemon/server/rights_check.hpp"
#include "rdma/network.hpp"
#include "rdma/transport/tls/psk_file.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd;

namespace {

std::string take_line(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string line{text.substr(0, end)};
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

/// A pattern means the user, told by each character of it.
bool means(std::string_view pattern, std::string_view name) {
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '*') return true;
    if (i >= name.size() || pattern[i] != name[i]) return false;
  }
  return pattern.size() == name.size();
}

void check(const Rights& rights, const std::string& name, const std::string& peer) {
  for (const auto* patterns : {&rights.rw, &rights.ro}) {
    for (const std::string& pattern : *patterns) {
      fuzz::require(fault_of_pattern(pattern).empty(), "every pattern of a file has a meaning");
    }
  }
  if (!rights.given()) return;
  const auto named = [](const std::vector<std::string>& patterns, std::string_view user) {
    return std::ranges::any_of(patterns, [&](const auto& one) { return means(one, user); });
  };
  const Permission permission = permission_of(rights, {name, peer});
  Permission expected = Permission::none;
  if (named(rights.ro, name)) expected = Permission::read;
  if (named(rights.rw, name)) expected = Permission::write;
  fuzz::require(permission == expected, "a user has the rights of the patterns with his name");

  const Permission nobody = permission_of(rights, {"", peer});
  const auto from = [&](const std::string& one) {
    const auto network = one.starts_with('@') ? rtrs::parse_network(one.substr(1)) : std::nullopt;
    return network && rtrs::lies_in(peer, *network);
  };
  fuzz::require(nobody != Permission::write || std::ranges::any_of(rights.rw, from),
                "nobody writes without a name, but from a network that is named");
  fuzz::require(nobody == Permission::none || std::ranges::any_of(rights.rw, from) ||
                    std::ranges::any_of(rights.ro, from),
                "nor reads");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text{reinterpret_cast<const char*>(data), size};
  const std::string name = take_line(text);
  const std::string peer = take_line(text);
  const auto settings = parse_config(std::string{text}, "conf");
  if (!settings) {
    fuzz::require(!settings.error().mistakes.empty(), "a file that is refused has a mistake");
    for (const ConfigMistake& mistake : settings.error().mistakes) {
      fuzz::require(!mistake.text.empty(), "every mistake has a sentence");
    }
    return 0;
  }
  const bool complete = contradiction_in_rights(*settings).empty();
  const bool user = rtrs::tls::fault_of_identity(name).empty();
  for (const ExportSpecification& each : settings->exports) {
    fuzz::require(!complete || !authenticates(*settings) || each.rights.given(),
                  "where clients prove their names it is said who may use what");
    if (user) check(each.rights, name, peer);
  }
  if (user) check(settings->search_rights, name, peer);
  return 0;
}
