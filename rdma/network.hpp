// SPDX-License-Identifier: BSD-3-Clause
// Networks as users write them, and whether a peer comes from one.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace rtrs {

/// An address is 16 bytes; one of IPv4 is written as IPv6 does it, ::ffff:a.b.c.d.
struct Network {
  using Address = std::array<unsigned char, 16>;

  Address address{};
  unsigned bits = 128;  ///< at its beginning that count

  friend bool operator==(const Network&, const Network&) = default;
};

/// `10.0.0.0/24`, `fd00::/8`, or one address. None: `::ffff:10.0.0.1/24`, which is neither a
/// network of IPv4 nor one of IPv6 only.
std::optional<Network> parse_network(std::string_view text);

/// `peer` is an address with its port, "10.0.0.7:40112" or "[fd00::7%eth0]:40112". A peer that
/// comes by IPv4 lies in no network of IPv6, not even in `::/0`.
bool lies_in(std::string_view peer, const Network& network);

/// The host of `peer` for a Crowd. One owner has a whole network of IPv6, so an address is written
/// as the networks that it is in, of 48, 56 and 64 bits, one within the other.
std::string host_in_networks(std::string_view peer);

/// "[fd00::]/64" of "[fd00::7]:40112": whoever is there has as many addresses as he wants. Empty:
/// the peer comes by IPv4, or by what is no address.
std::string network_of_host(std::string_view peer);

/// The host of `peer` in the one way to write it: "10.0.0.5", also of "[::ffff:10.0.0.5]:40112", or
/// "[fd00::7]". Of what is no address, all before the port.
std::string normal_host(std::string_view peer);

}  // namespace rtrs
