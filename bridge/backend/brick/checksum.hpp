// SPDX-License-Identifier: BSD-3-Clause
// Checksums of what a brick keeps on its disks. Only for .cpp files.
#pragma once

#include <isa-l/crc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace rnbd::brick {

inline std::uint32_t crc_of(const void* data, std::size_t size) {
  std::uint32_t crc = 0xFFFF'FFFF;
  auto* bytes = static_cast<unsigned char*>(const_cast<void*>(data));  // it only reads
  while (size > 0) {
    const std::size_t part = std::min<std::size_t>(size, 1U << 30);
    crc = crc32_iscsi(bytes, static_cast<int>(part), crc);
    bytes += part;
    size -= part;
  }
  return ~crc;
}

/// Of everything before the member `crc`.
template <class T>
std::uint32_t crc_before(const T& part) {
  return crc_of(&part, offsetof(T, crc));
}

}  // namespace rnbd::brick
