// SPDX-License-Identifier: BSD-3-Clause
// The bytes that a TCP connection may have under way, and those that it has carried.
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

/// Bytes that the kernel has received from the peer, and those of ours that the peer's kernel has
/// acknowledged. Errors: 0; the kernel does not tell, or it is no socket of TCP.
std::uint64_t bytes_carried(int socket);

}  // namespace rtrs::tcp
