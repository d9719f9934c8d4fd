// SPDX-License-Identifier: BSD-3-Clause
// Memory in several parts, seen as one.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "rdma/wire/endian.hpp"

namespace rtrs::library {

using wire::ConstBytes;
using wire::MutableBytes;

/// Does not own the memory.
class SgList {
 public:
  SgList() = default;
  explicit SgList(std::span<const iovec> parts);

  std::uint64_t size() const { return size_; }
  /// A range that lies in one part; none when it spans several.
  std::optional<MutableBytes> contiguous(std::uint64_t offset, std::size_t length) const;
  /// Copies a range out.
  void gather(std::uint64_t offset, MutableBytes to) const;
  /// Copies a range in.
  void scatter(std::uint64_t offset, ConstBytes from) const;

 private:
  template <class Function>
  void for_each(std::uint64_t offset, std::size_t length, Function function) const;

  std::span<const iovec> parts_;
  std::uint64_t size_ = 0;
};

}  // namespace rtrs::library
