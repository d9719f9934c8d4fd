// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/network.hpp"

#include <arpa/inet.h>

#include <algorithm>
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

bool is_v4(const AddressBytes& address) {
  constexpr AddressBytes kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  return std::equal(address.begin(), address.begin() + kMappedBits / 8, kMapped.begin());
}

bool begins_alike(const AddressBytes& address, const Network& network) {
  for (unsigned bit = 0; bit < network.bits; ++bit) {
    const unsigned mask = 0x80U >> (bit % 8);
    if (((address[bit / 8] ^ network.address[bit / 8]) & mask) != 0) return false;
  }
  return true;
}

struct PeerAddress {
  AddressBytes bytes{};
  std::string_view interface = {};  ///< "%eth0", or empty
};

/// Without the port and the brackets.
std::optional<PeerAddress> address_of(std::string_view peer) {
  const std::size_t colon = peer.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  peer = peer.substr(0, colon);
  if (peer.starts_with('[') && peer.ends_with(']')) peer = peer.substr(1, peer.size() - 2);
  const std::size_t percent = std::min(peer.find('%'), peer.size());
  bool v4 = false;
  const auto bytes = parse_address(std::string{peer.substr(0, percent)}, v4);
  if (!bytes) return std::nullopt;
  return PeerAddress{*bytes, peer.substr(percent)};
}

void append_hex(std::string& text, const AddressBytes& address, std::size_t from, std::size_t to) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (std::size_t at = from; at < to; ++at) {
    text += {kDigits[address[at] >> 4U], kDigits[address[at] & 0xFU]};
  }
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
  if (is_v4(*address) && network.bits < kMappedBits) return std::nullopt;
  return network;
}

bool lies_in(std::string_view peer, const Network& network) {
  const auto address = address_of(peer);
  if (!address || (is_v4(address->bytes) && network.bits < kMappedBits)) return false;
  return begins_alike(address->bytes, network);
}

std::string host_in_networks(std::string_view peer) {
  const auto address = address_of(peer);
  if (!address) return std::string{peer.substr(0, peer.rfind(':'))};
  std::string host;
  if (is_v4(address->bytes)) {
    append_hex(host, address->bytes, kMappedBits / 8, address->bytes.size());
    return host;
  }
  std::size_t from = 0;
  for (const std::size_t to : {6U, 7U, 8U}) {
    append_hex(host, address->bytes, from, to);
    if (from == 0) host += address->interface;
    host += '/';
    from = to;
  }
  append_hex(host, address->bytes, from, address->bytes.size());
  return host;
}

std::string network_of_host(std::string_view peer) {
  constexpr std::size_t kBytes = 8;
  auto address = address_of(peer);
  if (!address || is_v4(address->bytes)) return "";
  std::fill(address->bytes.begin() + kBytes, address->bytes.end(), 0);
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET6, address->bytes.data(), text.data(), text.size());
  return '[' + std::string{text.data()} + std::string{address->interface} + "]/64";
}

std::string normal_host(std::string_view peer) {
  const auto address = address_of(peer);
  if (!address) return std::string{peer.substr(0, peer.rfind(':'))};
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_v4(address->bytes)) {
    ::inet_ntop(AF_INET, address->bytes.data() + kMappedBits / 8, text.data(), text.size());
    return text.data();
  }
  ::inet_ntop(AF_INET6, address->bytes.data(), text.data(), text.size());
  return '[' + std::string{text.data()} + std::string{address->interface} + ']';
}

}  // namespace rtrs
