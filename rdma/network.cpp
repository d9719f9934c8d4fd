// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/network.hpp"

#include <arpa/inet.h>

#include <charconv>
#include <string>

namespace rtrs {
namespace {

using AddressBytes = Network::Address;

constexpr unsigned kMappedBits = 96;

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

bool begins_alike(const AddressBytes& address, const Network& network) {
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

}  // namespace

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

bool lies_in(std::string_view peer, const Network& network) {
  const auto address = address_of(peer);
  return address && begins_alike(*address, network);
}

}  // namespace rtrs
