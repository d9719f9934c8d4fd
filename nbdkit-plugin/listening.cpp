// SPDX-License-Identifier: BSD-3-Clause
#include "nbdkit-plugin/listening.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <charconv>
#include <filesystem>

namespace rnbd::plugin {
namespace {

bool listens(int fd) {
  int value = 0;
  socklen_t size = sizeof(value);
  return ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &size) == 0 && value == 1;
}

bool is_loopback(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    return ntohl(ipv4.sin_addr.s_addr) >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

/// "0.0.0.0 port 10809", or "" for what only this machine reaches.
std::string reachable_address(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(fd, name, &size) != 0) return "";
  if (address.ss_family != AF_INET && address.ss_family != AF_INET6) return "";
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (is_loopback(address) || ::getnameinfo(name, size, host.data(), host.size(), port.data(),
                                            port.size(), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "";
  }
  return std::string{host.data()} + " port " + port.data();
}

}  // namespace

std::string open_to_strangers() {
  std::string all;
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc/self/fd", gone}) {
    const std::string name = entry.path().filename();
    int fd = -1;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (!listens(fd)) continue;
    const std::string address = reachable_address(fd);
    if (!address.empty()) all += (all.empty() ? "" : ", ") + address;
  }
  return all;
}

}  // namespace rnbd::plugin
