// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/nbd_disconnect.hpp"

#include <charconv>
#include <string_view>

#include "bridge/kernel/netlink.hpp"

namespace rnbd {

std::string disconnect_kernel_device(const std::string& device) {
  constexpr std::string_view kDriver = "nbd";
  unsigned index = 0;
  const char* const end = device.data() + device.size();
  const bool named = device.starts_with(kDriver);
  const auto [rest, wrong] =
      std::from_chars(device.data() + (named ? kDriver.size() : 0), end, index);
  if (!named || wrong != std::errc{} || rest != end) return "'" + device + "' is no device nbdN";
  auto netlink = kernel::Netlink::open();
  if (!netlink) return netlink.error().text;
  kernel::Message message;
  message.command = kernel::Command::disconnect;
  message.index = index;
  const auto sent = netlink->send(message);
  return sent ? "" : sent.error().text;
}

}  // namespace rnbd
