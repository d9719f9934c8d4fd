// SPDX-License-Identifier: BSD-3-Clause
// A message to the kernel's nbd driver, before it is encoded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace rnbd::kernel {

enum class Command : std::uint8_t { connect, reconfigure, disconnect };

/// Source: linux/nbd-netlink.h, and drivers/block/nbd.c of Linux 6.1 and 6.12.
struct Message {
  Command command = Command::connect;
  std::optional<unsigned> index;   ///< of /dev/nbdN; none: the first that is free
  std::string identifier;          ///< of the disk; "" = left out
  std::vector<int> sockets;        ///< the kernel's ends
  std::uint64_t size = 0;          ///< bytes; 0 = left out
  std::uint16_t flags = 0;         ///< of the transmission
  std::uint64_t dead_timeout = 0;  ///< seconds that requests wait for a socket
};

}  // namespace rnbd::kernel
