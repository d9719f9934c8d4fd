// SPDX-License-Identifier: BSD-3-Clause
// The addresses at both ends of a path, and its transport.
#pragma once

#include <cstdint>
#include <string>

#include "rdma/wire/handshake.hpp"

namespace rtrs {

enum class TransportKind : std::uint8_t { tcp, rdma };

/// One path from the client to a server. An empty `source` lets the system choose the local
/// address.
struct PathAddress {
  TransportKind transport = TransportKind::tcp;
  std::string source;
  std::string host;
  std::uint16_t port = wire::kDefaultPort;
  /// From -kMaxPreference to kMaxPreference. Among paths with the same access state, a session uses
  /// those with the highest value. Two addresses that differ only in this are the same path.
  int preference = 0;

  friend bool operator==(const PathAddress& a, const PathAddress& b) {
    return a.transport == b.transport && a.source == b.source && a.host == b.host &&
           a.port == b.port;
  }
};
inline constexpr int kMaxPreference = 9;

}  // namespace rtrs
