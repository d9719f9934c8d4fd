// SPDX-License-Identifier: BSD-3-Clause
// The bytes that a TCP connection may have under way.
#pragma once

#include <cstdint>

namespace rtrs::tcp {

/// Bytes for SO_SNDBUF of a connection, by its shortest round trip in microseconds. 0: let the
/// kernel choose; its buffers grow with the network to megabytes. Near ends do not need those, and
/// data that wait in them are in no CPU's cache any more when they are copied once more.
///
/// Source: decision 29; tcp(7), socket(7).
int send_buffer_for(std::uint32_t shortest_round_trip_us);

/// Sets SO_SNDBUF of a connected socket by the round trip of its handshake.
///
/// Errors: none; the kernel goes on choosing.
void bound_send_buffer(int socket);

}  // namespace rtrs::tcp
