// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/host_name.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace rtrs {

std::string complaint_about_host_name(std::string_view name) {
  constexpr std::size_t kLongestName = 253;
  constexpr std::size_t kLongestLabel = 63;
  if (name.size() > kLongestName) {
    return "a host name has at most 253 characters, and this one has " +
           std::to_string(name.size());
  }
  if (name.ends_with('.')) name.remove_suffix(1);  // the root
  for (std::string_view rest = name; !rest.empty();) {
    const std::size_t dot = std::min(rest.find('.'), rest.size());
    if (dot > kLongestLabel) return "a part of a host name has at most 63 characters";
    if (dot == 0 || dot + 1 == rest.size()) return "a part of the host name is missing";
    rest.remove_prefix(std::min(dot + 1, rest.size()));
  }
  return "";
}

Failure no_address_of(std::string_view host, int code) {
  const std::string what = "cannot resolve host '" + std::string{host} + "': ";
  if (code == EAI_AGAIN) {
    return {EHOSTUNREACH, what +
                              "no name server answers (is the network up, and the right one in "
                              "/etc/resolv.conf? a numeric address needs none)"};
  }
  const bool unknown = code == EAI_NONAME || code == EAI_NODATA;
  return {ENXIO, what + (unknown ? "there is no such name" : gai_strerror(code)) +
                     " (check the spelling, or use a numeric address)"};
}

tl::expected<AddressList, Failure> resolve_host(const std::string& host, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0) return tl::unexpected(no_address_of(host, code));
  return AddressList{found, &::freeaddrinfo};
}

}  // namespace rtrs
