// SPDX-License-Identifier: BSD-3-Clause
// How users name a device somewhere else, and the ways to it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "rdma/client.hpp"

namespace rnbd {

/// The contents of a URI: a server and one of its exports.
struct DeviceUri {
  rtrs::TransportKind transport = rtrs::TransportKind::tcp;
  std::string host;  ///< name or address, an IPv6 address without brackets
  std::uint16_t port = 0;
  std::string device;  ///< "" when the URI names only the server
  bool tls = false;
  std::string user = {};  ///< with TLS: the user's name; "" = not said
  /// The keys behind '?' with their values, for a caller that knows them.
  std::vector<std::pair<std::string, std::string>> options{};
  /// The word of rnbd-WORD://, and the paths to each of the servers, of which `host` is the first;
  /// none: it names one server.
  std::string several{};
  std::vector<std::vector<rtrs::PathAddress>> servers{};
  friend bool operator==(const DeviceUri&, const DeviceUri&) = default;

  rtrs::PathAddress path() const { return {transport, "", host, port}; }
};

/// Reads `rnbd://host[:port][/device]` (RDMA), `rnbd+tcp://host[:port][/device]` (TCP) or
/// `rnbds+tcp://[user@]host[:port][/device]` (TCP with TLS), each of which may end with
/// `?key=value[&key=value ...]`.
///
/// With `rnbd-WORD://`, `rnbd-WORD+tcp://` and `rnbds-WORD+tcp://`, WORD being one of
/// schemes_of_several(), it has a list of servers, `host[:port],host[:port]`. `a+b` is one server
/// with two paths, each of which is written as for parse_path().
///
/// The device follows the first slash: `disk0`, or `dev/sdb`, or with a second slash `/dev/sdb`.
/// `%41` stands for the byte 0x41; '?', '#' and control characters must be written so.
///
/// Errors: a sentence with the remedy.
tl::expected<DeviceUri, std::string> parse_device_uri(std::string_view text);

/// A kind of disk that several servers have together.
struct SchemeOfSeveral {
  std::string_view word;
  std::size_t most;  ///< servers
  const char* name;  ///< of such a disk, for messages
  const char* form;  ///< "write ...", for messages
};
std::span<const SchemeOfSeveral> schemes_of_several();

/// Reads `host[:port]`, an IPv6 address in brackets. Without a port it gets the given one.
///
/// Errors: a sentence with the remedy.
struct HostPort {
  std::string host;
  std::uint16_t port = 0;
  friend bool operator==(const HostPort&, const HostPort&) = default;
};
tl::expected<HostPort, std::string> parse_host_port(std::string_view text,
                                                    std::uint16_t port = rtrs::wire::kDefaultPort);

/// The host of an address to listen on, as the system wants it: fe80::1%25eth0 is fe80::1%eth0.
///
/// Errors: a sentence about a link-local address without its interface.
tl::expected<std::string, std::string> parse_local_host(std::string_view text);

/// Reads one path between client and server: `[tcp:|rdma:][src@]dst[:port][,preference=n]`; without
/// a transport or a port it has the given one.
///
/// Errors: a sentence with the remedy.
tl::expected<rtrs::PathAddress, std::string> parse_path(
    std::string_view text, rtrs::TransportKind transport,
    std::uint16_t port = rtrs::wire::kDefaultPort);

/// The fault of a device's name; "" if a server can be asked for it.
std::string complaint_about_device_name(std::string_view name);

/// The one spelling of a name that is the path of a device below a directory: `dev/sdb` for
/// `/dev/sdb`, `dev//sdb` and `./dev/sdb`. A name without components stays the same.
std::string plain_path(std::string_view name);

}  // namespace rnbd
