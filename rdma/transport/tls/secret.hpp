// SPDX-License-Identifier: BSD-3-Clause
// Bytes that nobody else shall see.
#pragma once

#include <cstddef>
#include <span>

namespace rtrs::tls {

/// A key in memory of its own: in no core dump, and overwritten at its end.
///
/// Errors: std::bad_alloc
class Secret {
 public:
  static constexpr std::size_t kMost = 64;  ///< bytes

  Secret() = default;
  explicit Secret(std::span<const std::byte> bytes);
  Secret(Secret&& other) noexcept;
  Secret& operator=(Secret&& other) noexcept;
  ~Secret();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

/// Overwrites what nobody reads any more, which a compiler would leave out.
void forget(std::span<std::byte> bytes);

}  // namespace rtrs::tls
