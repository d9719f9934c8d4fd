// SPDX-License-Identifier: BSD-3-Clause
// Sends messages to the kernel's nbd driver.
#pragma once

#include <memory>
#include <tl/expected.hpp>

#include "bridge/kernel/message.hpp"
#include "rdma/failure.hpp"

struct nl_sock;

namespace rnbd::kernel {

/// Errors:  sentences with the remedy. ENOENT: there is no nbd driver; EPERM: CAP_SYS_ADMIN is
///          missing; EBUSY: the device is in use.
/// Threads: one at a time. send() waits for the kernel, which may wait for requests of the device.
///          So the threads that serve these must never call it.
class Netlink {
 public:
  static tl::expected<Netlink, rtrs::Failure> open();

  /// Returns the index of the device.
  tl::expected<unsigned, rtrs::Failure> send(const Message& message);

 private:
  struct Close {
    void operator()(nl_sock* socket) const;
  };
  Netlink(std::unique_ptr<nl_sock, Close> socket, int family)
      : socket_{std::move(socket)}, family_{family} {}

  std::unique_ptr<nl_sock, Close> socket_;
  int family_;
};

}  // namespace rnbd::kernel
