// SPDX-License-Identifier: BSD-3-Clause
// Where a path goes, and over which transport.
#pragma once

#include <cstdint>
#include <string>

#include "rdma/wire/handshake.hpp"

namespace rtrs {

enum class TransportKind : std::uint8_t { tcp, rdma };

/// One pair of addresses. `source` may be empty (the system chooses).
struct PathAddress {
  TransportKind transport = TransportKind::tcp;
  std::string source;
  std::string host;
  std::uint16_t port = wire::kDefaultPort;
  /// Paths with a higher value are used first; -kMaxPreference at least. Addresses that differ only
  /// in this are the same path.
  int preference = 0;

  friend bool operator==(const PathAddress& a, const PathAddress& b) {
    return a.transport == b.transport && a.source == b.source && a.host == b.host &&
           a.port == b.port;
  }
};
inline constexpr int kMaxPreference = 9;

}  // namespace rtrs
