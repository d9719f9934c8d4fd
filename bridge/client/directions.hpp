// SPDX-License-Identifier: BSD-3-Clause
// Directions from a server: its other addresses, and the servers of disks that it does not have
// itself.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "bridge/client/uri.hpp"
#include "rdma/client.hpp"

namespace rnbd {

/// The most addresses that a server reports.
inline constexpr std::size_t kMaxAdvertised = 8;
inline constexpr std::size_t kMaxReferral = 1024;  ///< bytes of the URI

/// An address of a server for all its clients: `tcp:HOST[:PORT]` or `rdma:HOST[:PORT]`, with IPv6
/// addresses in brackets. It has no source, preference or interface, which only the client can
/// know.
///
/// Errors: a sentence with the remedy.
tl::expected<rtrs::PathAddress, std::string> parse_advertised(std::string_view text);

/// The URI of a device of another server. Files, users and disks of several servers are for the
/// client to choose. Behind '?', only `uuid` and `server-id` are allowed.
///
/// Errors: a sentence with the remedy.
tl::expected<DeviceUri, std::string> parse_referral(std::string_view text);

}  // namespace rnbd
