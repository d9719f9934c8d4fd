// SPDX-License-Identifier: BSD-3-Clause
// How users of the library name a server and the paths to it.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/client.hpp"

namespace rtrs::library {

/// The contents of a URI.
struct Uri {
  std::vector<PathAddress> paths;
  std::string name;  ///< of the session; "" when the URI names none
};

/// Reads rtrs://HOST[:PORT][,HOST[:PORT]...][/NAME] (RDMA) or rtrs+tcp://... (TCP).
///
/// Errors: EINVAL, with the remedy.
tl::expected<Uri, Failure> parse_uri(std::string_view text);

/// Reads one path, [tcp:|rdma:][SOURCE@]HOST[:PORT], an IPv6 address in brackets. Port 0 is for
/// listeners.
///
/// Errors: EINVAL, with the remedy.
tl::expected<PathAddress, Failure> parse_path(std::string_view text, TransportKind transport);

/// "min-inflight", "round-robin" or "min-latency". Errors: EINVAL.
tl::expected<PathPolicy, Failure> parse_policy(std::string_view text);

}  // namespace rtrs::library
