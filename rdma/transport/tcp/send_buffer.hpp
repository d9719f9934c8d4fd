// SPDX-License-Identifier: BSD-3-Clause
// How much a TCP connection may have under way.
#pragma once

#include <cstdint>

namespace rtrs::tcp {

/// Bytes for SO_SNDBUF of a connection whose shortest round trip took so many microseconds; 0: let
/// the kernel choose, whose buffers grow with the network to megabytes. Near ends do not need
/// those, and what waits in them is in no CPU's cache any more when it is copied once more.
///
/// Source: decision 29; tcp(7), socket(7).
int send_buffer_for(std::uint32_t shortest_round_trip_us);

/// Sets that of a connected socket by what its handshake has shown.
///
/// Errors: none; the kernel goes on choosing.
void bound_send_buffer(int socket);

}  // namespace rtrs::tcp
