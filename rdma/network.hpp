// SPDX-License-Identifier: BSD-3-Clause
// Networks as users write them, and whether a peer comes from one.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace rtrs {

/// An address is 16 bytes; one of IPv4 is written as IPv6 does it, ::ffff:a.b.c.d.
struct Network {
  using Address = std::array<unsigned char, 16>;

  Address address{};
  unsigned bits = 128;  ///< at its beginning that count

  friend bool operator==(const Network&, const Network&) = default;
};

/// `10.0.0.0/24`, `fd00::/8`, or one address.
std::optional<Network> parse_network(std::string_view text);

/// `peer` is an address with its port, "10.0.0.7:40112" or "[fd00::7%eth0]:40112".
bool lies_in(std::string_view peer, const Network& network);

}  // namespace rtrs
