// SPDX-License-Identifier: BSD-3-Clause
// Input: a server's word of where else to go, as a client takes it: an address, or a URI.
#include "bridge/client/directions.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "bridge/protocol/messages.hpp"
#include "rdma/path_list.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd;

namespace {

/// Nothing that a resolver or a terminal could take for something else.
void check_host(const std::string& host) {
  const bool plain = std::ranges::all_of(host, [](char c) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    return word || c == '.' || c == '-' || c == '_' || c == ':';
  });
  fuzz::require(!host.empty() && plain, "a host is an address or a name");
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto path = parse_advertised(text);
  fuzz::require(path || !path.error().empty(), "an address is refused with a sentence");
  if (path) {
    check_host(path->host);
    fuzz::require(path->port != 0, "it has a port");
    fuzz::require(path->source.empty() && path->preference == 0,
                  "and nothing that is the client's");
    const std::string again = rtrs::to_string(*path);
    fuzz::require(wire::is_valid_device_name(again), "it can be told");
    const auto told = parse_advertised(again);
    fuzz::require(told && *told == *path, "and means the same then");
  }
  const auto referral = parse_referral(text);
  fuzz::require(referral || !referral.error().empty(), "so is a referral");
  if (referral) {
    check_host(referral->host);
    fuzz::require(referral->user.empty() && referral->servers.empty(), "it names no user");
    fuzz::require(complaint_about_device_name(referral->device).empty(), "it names a device");
    for (const auto& [key, value] : referral->options) {
      fuzz::require(key == "uuid" || key == "server-id", "it names no file");
    }
  }
  return 0;
}
