// SPDX-License-Identifier: BSD-3-Clause
// The journal's file of a brick, or its tier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace rnbd::brick {

/// Errors: 0 or a positive errno; a short read or write is EIO.
class PartFile {
 public:
  virtual ~PartFile() = default;
  virtual std::uint64_t size() const = 0;  ///< bytes
  /// The size that it can have: a file grows, a device does not.
  ///
  /// Units: bytes.
  virtual std::uint64_t room() const = 0;
  virtual int read(std::uint64_t offset, std::span<std::byte> bytes) = 0;
  virtual int write(std::uint64_t offset, std::span<const std::byte> bytes) = 0;
  /// After an error it always fails: what was written before may be lost.
  virtual int sync() = 0;
};

}  // namespace rnbd::brick
