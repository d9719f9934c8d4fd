// SPDX-License-Identifier: BSD-3-Clause
// Shared by tests of transfers: a fake server's device, and transfers of it.
#pragma once

#include <doctest/doctest.h>

#include <random>
#include <vector>

#include "bridge/client/control.hpp"
#include "bridge/client/transfer.hpp"
#include "tests/unit/client/fake_server.hpp"

namespace rnbd::test {

using wire::IoOperation;

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

inline DeviceGeometry geometry_for(const FakeServer& server) {
  DeviceGeometry geometry;
  geometry.size = geometry.padded_size = server.disk.size();
  geometry.max_io = server.options.max_io_size;
  geometry.max_discard = geometry.max_write_zeroes = 0xFFFF'FE00;
  geometry.native_fua = geometry.own_peer = geometry.fast_zero = true;
  return geometry;
}

inline DeviceHandle handle{.id{7}, .unflushed{}};

inline std::vector<std::byte> pattern(std::size_t size) {
  std::mt19937 random{1};
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

inline Transfer write_of(std::uint64_t offset, const std::vector<std::byte>& data) {
  return {.operation = IoOperation::write,
          .offset = offset,
          .length = data.size(),
          .from = data.data()};
}

inline Transfer range(IoOperation operation, std::uint64_t offset, std::uint64_t length) {
  return {.operation = operation, .offset = offset, .length = length};
}

/// The pieces tile the range without gap or overlap.
inline void check_tiling(const std::vector<wire::Io>& pieces, std::uint64_t offset,
                         std::uint64_t length, std::uint64_t largest) {
  std::uint64_t at = offset;
  for (const auto& io : pieces) {
    CHECK(io.sector * 512 == at);
    CHECK(io.length > 0);
    CHECK(io.length <= largest);
    at += io.length;
  }
  CHECK(at == offset + length);
}

}  // namespace rnbd::test
