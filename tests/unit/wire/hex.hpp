// SPDX-License-Identifier: BSD-3-Clause
// Bytes written as hexadecimal text, for tests that compare messages byte for byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/wire/endian.hpp"

namespace test {

using Bytes = std::vector<std::byte>;

inline int nibble(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

/// The bytes of a text such as "bd 1b 00 02", padded with zeros up to `size`.
inline Bytes from_hex(std::string_view text, std::size_t size = 0) {
  Bytes bytes;
  int high = -1;
  for (char c : text) {
    const int value = nibble(c);
    if (value < 0) continue;
    if (high < 0) {
      high = value;
    } else {
      bytes.push_back(static_cast<std::byte>(high * 16 + value));
      high = -1;
    }
  }
  if (bytes.size() < size) bytes.resize(size);
  return bytes;
}

inline std::string to_hex(rtrs::wire::ConstBytes bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (std::byte byte : bytes) {
    if (!text.empty()) text += ' ';
    text += kDigits[static_cast<unsigned>(byte) >> 4];
    text += kDigits[static_cast<unsigned>(byte) & 15];
  }
  return text;
}

inline Bytes copy(rtrs::wire::ConstBytes bytes) { return {bytes.begin(), bytes.end()}; }

inline Bytes join(std::initializer_list<rtrs::wire::ConstBytes> parts) {
  Bytes all;
  for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

/// Overwrites bytes of a message from `offset` on.
inline Bytes patched(Bytes bytes, std::size_t offset, std::string_view hex) {
  const Bytes patch = from_hex(hex);
  for (std::size_t i = 0; i < patch.size(); ++i) bytes.at(offset + i) = patch[i];
  return bytes;
}

/// Small, seeded and the same on every machine; tests must not depend on a library's generator.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    state_ += 0x9E37'79B9'7F4A'7C15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EB;
    return z ^ (z >> 31);
  }
  /// A number of 0..bound-1.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }
  /// A number of low..high.
  std::uint64_t between(std::uint64_t low, std::uint64_t high) {
    return low + below(high - low + 1);
  }
  bool flip() { return (next() & 1) != 0; }

  void fill(rtrs::wire::MutableBytes bytes) {
    for (auto& byte : bytes) byte = static_cast<std::byte>(next());
  }

  std::string text(std::size_t length, std::string_view alphabet) {
    std::string result;
    for (std::size_t i = 0; i < length; ++i) result += alphabet[below(alphabet.size())];
    return result;
  }

 private:
  std::uint64_t state_;
};

}  // namespace test
