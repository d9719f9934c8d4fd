// SPDX-License-Identifier: BSD-3-Clause
// Little-endian integers as they lie on the wire.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace rtrs::wire {

/// An integer stored in little-endian byte order with alignment 1, so that wire structs have no
/// padding.
///
/// Compiles to one move on little-endian machines. Compared through the conversion to T: an
/// operator of its own would make comparisons with plain integers ambiguous.
template <class T>
class Le {
  static_assert(std::is_integral_v<T> && std::is_unsigned_v<T>);

 public:
  constexpr Le() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): implicit on purpose
  constexpr Le(T value) : bytes_{std::bit_cast<Bytes>(to_little(value))} {}
  constexpr operator T() const { return to_little(std::bit_cast<T>(bytes_)); }  // NOLINT
  constexpr T value() const { return *this; }

 private:
  using Bytes = std::array<std::uint8_t, sizeof(T)>;

  static constexpr T to_little(T value) {
    if constexpr (std::endian::native == std::endian::little || sizeof(T) == 1) {
      return value;
    } else {
      auto bytes = std::bit_cast<Bytes>(value);
      Bytes swapped{};
      for (std::size_t i = 0; i < bytes.size(); ++i) swapped[i] = bytes[bytes.size() - 1 - i];
      return std::bit_cast<T>(swapped);
    }
  }

  Bytes bytes_{};
};

using le16 = Le<std::uint16_t>;
using le32 = Le<std::uint32_t>;
using le64 = Le<std::uint64_t>;

/// Bytes of a 128-bit identifier; compared bytewise.
using Uuid = std::array<std::uint8_t, 16>;

using ConstBytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

/// The bytes of one wire struct, ready to be sent.
template <class T>
requires std::is_trivially_copyable_v<T> ConstBytes bytes_of(const T& message) {
  return std::as_bytes(std::span<const T, 1>{&message, 1});
}

/// Copies a wire struct out of untrusted bytes; the caller has checked that they suffice.
template <class T>
requires std::is_trivially_copyable_v<T> T copy_of(ConstBytes bytes) {
  T message;
  std::memcpy(&message, bytes.data(), sizeof(T));
  return message;
}

}  // namespace rtrs::wire
