// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/send_buffer.hpp"

#include <linux/tcp.h>  // tcpi_min_rtt, which netinet/tcp.h does not have
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>

namespace rtrs::tcp {
namespace {

/// The kernel doubles it: a round trip of kNear carries 8 GB/s then, on each connection of a path.
/// Where net.core.wmem_max is 208 KiB, as in Linux 6.1, it is half of that.
constexpr int kFew = 416 * 1024;
constexpr std::uint32_t kNear = 100;  ///< microseconds

}  // namespace

int send_buffer_for(std::uint32_t shortest_round_trip_us) {
  const bool near = shortest_round_trip_us > 0 && shortest_round_trip_us <= kNear;
  return near ? kFew : 0;
}

void bound_send_buffer(int socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return;
  if (size < offsetof(tcp_info, tcpi_min_rtt) + sizeof(info.tcpi_min_rtt)) return;
  const int bytes = send_buffer_for(info.tcpi_min_rtt);
  if (bytes > 0) setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes));
}

std::uint64_t bytes_carried(int socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  const bool told = size >= offsetof(tcp_info, tcpi_segs_out);  // both are in front of it
  return told ? info.tcpi_bytes_acked + info.tcpi_bytes_received : 0;
}

}  // namespace rtrs::tcp
