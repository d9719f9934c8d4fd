// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tls/psk_file.hpp"

#include <algorithm>
#include <array>

namespace rtrs::tls {
namespace {

using Error = tl::unexpected<std::string>;

constexpr std::size_t kLeastBytes = 16;
constexpr std::size_t kLongestName = 128;  ///< bytes; gnutls-cli and qemu have no shorter limit

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// "" = `secret` has it.
std::string read_hex(std::string_view text, Secret& secret) {
  if (text.size() % 2 != 0 || !std::ranges::all_of(text, [](char c) { return digit(c) >= 0; })) {
    return "the key is not written in pairs of hexadecimal digits";
  }
  const std::size_t size = text.size() / 2;
  if (size < kLeastBytes || size > Secret::kMost) {
    return "the key has " + std::to_string(size) +
           " bytes; 16 to 64 random ones are needed, as rnbd-ctl keygen makes them";
  }
  std::array<std::byte, Secret::kMost> bytes;
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(digit(text[2 * i]) * 16 + digit(text[2 * i + 1]));
  }
  secret = Secret{std::span{bytes}.first(size)};
  forget(bytes);
  return "";
}

std::string fault_of_key_name(std::string_view name) {
  if (name.size() > kLongestName) return "is longer than 128 bytes";
  std::string fault = fault_of_identity(identity_of(name));
  if (!fault.empty()) return fault;
  const bool plain = std::ranges::all_of(name, [](char c) { return c > 0x20 && c < 0x7F; });
  return plain ? "" : "has blanks or characters that cannot be printed";
}

}  // namespace

std::string_view identity_of(std::string_view key_name) {
  return key_name.substr(0, std::min(key_name.find('/'), key_name.size()));
}

std::string fault_of_identity(std::string_view identity) {
  if (identity.empty()) return "is empty";
  if (identity.size() > 63) return "is longer than 63 bytes";
  if (!std::ranges::all_of(identity, [](char c) { return c > 0x20 && c < 0x7F; })) {
    return "has blanks or characters that cannot be printed";
  }
  if (identity.find_first_of("*/@:") != std::string_view::npos) return "has one of * / @ : in it";
  return "";
}

tl::expected<std::vector<PskKey>, std::string> parse_psk(std::string_view text) {
  std::vector<PskKey> keys;
  for (unsigned number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.front() == '#') continue;
    const std::string where = "line " + std::to_string(number) + ": ";
    const std::size_t colon = line.rfind(':');
    if (colon == std::string_view::npos) return Error{where + "a line is NAME:HEX"};
    PskKey key;
    key.name = line.substr(0, colon);
    if (auto fault = fault_of_key_name(key.name); !fault.empty()) {
      return Error{where + "the name " + fault};
    }
    if (auto fault = read_hex(line.substr(colon + 1), key.secret); !fault.empty()) {
      return Error{where + fault};
    }
    if (std::ranges::find(keys, key.name, &PskKey::name) != keys.end()) {
      return Error{where + "the name '" + key.name + "' is there twice"};
    }
    keys.push_back(std::move(key));
  }
  if (keys.empty()) return Error{"there is no key in it; make one with rnbd-ctl keygen"};
  return keys;
}

tl::expected<const PskKey*, std::string> choose_key(const std::vector<PskKey>& keys,
                                                    std::string_view name,
                                                    const OptionWords& words) {
  if (name.empty()) {
    if (keys.size() == 1) return &keys.front();
    return Error{"it has " + std::to_string(keys.size()) + " keys; " + words.choose_key};
  }
  const auto exact = std::ranges::find(keys, name, &PskKey::name);
  if (exact != keys.end()) return &*exact;
  const auto newest = std::find_if(
      keys.rbegin(), keys.rend(), [&](const PskKey& key) { return identity_of(key.name) == name; });
  if (newest != keys.rend()) return &*newest;
  return Error{"it has no key of the name '" + std::string{name} + "'"};
}

}  // namespace rtrs::tls
