// SPDX-License-Identifier: BSD-3-Clause
// A server's word of where else to go: by which addresses it is reached, and who has a disk that it
// has not.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "bridge/client/uri.hpp"
#include "rdma/client.hpp"

namespace rnbd {

/// The addresses of a server that it tells at most.
inline constexpr std::size_t kMaxAdvertised = 8;
inline constexpr std::size_t kMaxReferral = 1024;  ///< bytes of the URI

/// An address of a server for all its clients: `tcp:HOST[:PORT]` or `rdma:HOST[:PORT]`, an IPv6
/// address in brackets. A source, a preference and an interface are no part of it: only the client
/// can say them.
///
/// Errors: a sentence with the remedy.
tl::expected<rtrs::PathAddress, std::string> parse_advertised(std::string_view text);

/// The device of another server, as URI. A file, a user and a mirror are the client's own affair;
/// of what stands behind '?', `uuid` and `server-id` are possible.
///
/// Errors: a sentence with the remedy.
tl::expected<DeviceUri, std::string> parse_referral(std::string_view text);

}  // namespace rnbd
