// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/listener.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "bridge/client/uri.hpp"
#include "bridge/control/unix_socket.hpp"
#include "rdma/host_name.hpp"

namespace rnbd::nbd {
namespace {

constexpr int kBacklog = 128;

std::string reason(int error) { return strerrordesc_np(error); }

}  // namespace

tl::expected<NbdAddress, std::string> parse_nbd_address(std::string_view text) {
  const auto fail = [&](const std::string& why) {
    return tl::unexpected("'" + std::string{text} + "': " + why);
  };
  NbdAddress address;
  if (text.starts_with("unix:")) {
    address.path = text.substr(5);
    if (address.path.empty()) {
      return fail("the path is missing; write e.g. unix:/run/rnbd/disk0.sock");
    }
    if (const std::string wrong = complaint_about_socket_path(address.path); !wrong.empty()) {
      return fail(wrong);
    }
    return address;
  }
  if (!text.starts_with("tcp:")) {
    return fail("write e.g. unix:/run/rnbd/disk0.sock or tcp:127.0.0.1:10809");
  }
  std::string_view rest = text.substr(4);
  if (rest.starts_with('[')) {
    const std::size_t end = rest.find(']');
    if (end == std::string_view::npos) {
      return fail("the bracket of the IPv6 address is not closed; write e.g. tcp:[::1]:10809");
    }
    const auto host = parse_local_host(rest.substr(1, end - 1));
    if (!host) return fail(host.error());
    address.host = *host;
    rest.remove_prefix(end + 1);
  } else {
    const std::size_t colon = std::min(rest.find(':'), rest.size());
    address.host = rest.substr(0, colon);
    rest.remove_prefix(colon);
  }
  if (!rest.empty()) {
    const std::string_view port = rest.substr(1);
    const char* const last = port.data() + port.size();
    const auto [end, error] = std::from_chars(port.data(), last, address.port);
    if (rest[0] != ':' || port.empty() || error != std::errc{} || end != last) {
      return fail("the port '" + std::string{port} +
                  "' is not a number from 0 to 65535 (0 = any free one); IPv6 addresses need "
                  "brackets, e.g. tcp:[::1]:10809");
    }
  }
  if (address.host.empty()) {
    return fail("the address is missing; write e.g. tcp:127.0.0.1:10809, or tcp:*:10809 for all");
  }
  if (address.host == "*") address.host.clear();
  const std::string wrong = rtrs::complaint_about_host_name(address.host);
  if (!wrong.empty()) return fail(wrong);
  return address;
}

Listener::~Listener() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!path_.empty()) ::unlink(path_.c_str());
}

std::string Listener::address() const {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* const name = reinterpret_cast<sockaddr*>(&storage);
  if (::getsockname(fd_, name, &size) != 0) return "?";
  if (storage.ss_family == AF_UNIX) {
    return std::string{"unix:"} + reinterpret_cast<const sockaddr_un*>(&storage)->sun_path;
  }
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  if (::getnameinfo(name, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  const bool ipv6 = storage.ss_family == AF_INET6;
  return std::string{"tcp:"} + (ipv6 ? "[" : "") + host.data() + (ipv6 ? "]:" : ":") + port.data();
}

bool Listener::reachable_from_outside() const {
  const std::string text = address();
  return !text.starts_with("unix:") && !text.starts_with("tcp:127.") &&
         !text.starts_with("tcp:[::1]");
}

std::string text_of(const NbdAddress& address) {
  if (!address.path.empty()) return "unix:" + address.path;
  const bool brackets = address.host.find(':') != std::string::npos;
  const std::string host = address.host.empty() ? "*" : address.host;
  return "tcp:" + (brackets ? '[' + host + ']' : host) + ":" + std::to_string(address.port);
}

tl::expected<Listener, Failure> Listener::open_unix(const std::string& path) {
  constexpr mode_t kWhatTheUmaskLeaves = 0777;
  const auto fd = listen_on_unix_socket(path, kWhatTheUmaskLeaves);
  if (!fd) return tl::unexpected(Failure{EIO, "unix:" + path + ": " + fd.error()});
  return Listener{*fd, path};
}

tl::expected<std::vector<Listener>, Failure> Listener::open(const NbdAddress& address) {
  std::vector<Listener> listeners;
  if (!address.path.empty()) {
    auto listener = open_unix(address.path);
    if (!listener) return tl::unexpected(listener.error());
    listeners.push_back(std::move(*listener));
    return listeners;
  }
  const std::string text = text_of(address);
  addrinfo hints{};
  hints.ai_flags = AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                   std::to_string(address.port).c_str(), &hints, &found);
  if (failed != 0) {
    const Failure why = rtrs::no_address_of(address.host, failed);
    return tl::unexpected(Failure{why.error, text + ": " + why.text});
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner{found, &::freeaddrinfo};
  int error = EADDRNOTAVAIL;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    const int fd = ::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) {
      error = errno;
      continue;
    }
    const int one = 1;
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (a->ai_family == AF_INET6) ::setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (::bind(fd, a->ai_addr, a->ai_addrlen) == 0 && ::listen(fd, kBacklog) == 0) {
      listeners.push_back(Listener{fd});
      continue;
    }
    error = errno;
    ::close(fd);
    // Half of a host's addresses would be a surprise; a kernel without IPv6 is none.
    if (error == EADDRINUSE || error == EACCES) {
      listeners.clear();
      break;
    }
  }
  if (listeners.empty()) {
    return tl::unexpected(Failure{
        error,
        text + ": " + reason(error) +
            (error == EADDRINUSE ? "; another program listens there, choose another port" : "")});
  }
  return listeners;
}

}  // namespace rnbd::nbd
