// SPDX-License-Identifier: BSD-3-Clause
// Another member of a mirror group, a place in it, and the way to read there.
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
  /// False: the PULL has been answered. Threads: any.
  std::function<bool()> wanted = {};
};

/// Reads from other members of mirror groups.
///
/// Threads: any.
class PullReader {
 public:
  virtual ~PullReader() = default;
  /// Calls `then` with an errno, on a thread of its own. `into` must stay until then.
  virtual void read(const PullSource& source, rtrs::wire::MutableBytes into,
                    std::function<void(int error)> then) = 0;
  /// The session of a client has ended, and its sources are not needed any more.
  virtual void forget(const wire::Uuid& client) = 0;
};

}  // namespace rnbd::mirror
