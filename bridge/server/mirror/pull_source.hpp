// SPDX-License-Identifier: BSD-3-Clause
// Another member of a mirror group, and a place in it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "bridge/protocol/messages.hpp"

namespace rnbd::mirror {

/// The other member must serve the same client that has claimed this one, and must be the disk that
/// this client means.
struct PullSource {
  std::string uri;
  wire::Uuid group{};
  wire::Uuid claimant{};
  std::uint64_t disk = 0;
  std::uint64_t offset = 0;  ///< bytes
  wire::Uuid client{};       ///< the session for which it is read
  /// False: the client is not served any more. Threads: any.
  std::function<bool()> wanted = {};
};

}  // namespace rnbd::mirror
