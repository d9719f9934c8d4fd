// SPDX-License-Identifier: BSD-3-Clause
// One client's identity, and the limits that were agreed with it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "bridge/protocol/messages.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/rights.hpp"
#include "bridge/server/throttle.hpp"
#include "rdma/core/time.hpp"

namespace rnbd {

/// An OPEN without a result is refused for now after this time. Opening takes milliseconds, or some
/// seconds from a sleeping disk. But meanwhile a client that recovers its session holds back the
/// requests of all its devices, and fails them after 30 s (no-path-timeout).
constexpr rtrs::Duration kOpenTimeout = std::chrono::seconds{5};

struct SessionFacts {
  std::string name;
  std::string peer;               ///< its address, for the log
  std::string identity;           ///< the name that it has proven; "": none
  wire::Uuid uuid{};              ///< the number of its session, see number_of_user()
  bool extensions = false;        ///< kFeatureUserMessages was negotiated
  bool claims = false;            ///< wire::kFeatureClaims likewise
  std::uint64_t features = 0;     ///< all that were negotiated; 0 without extensions
  std::uint32_t queue_depth = 0;  ///< requests in flight at most
  std::uint32_t max_io_size = 0;  ///< bytes
  DeviceIds ids = DeviceIds::never_twice;
  rtrs::Duration open_timeout = kOpenTimeout;
  std::shared_ptr<Throttle> throttle = {};  ///< of its requests; null: nothing limits them

  User user() const { return {identity, peer}; }
  /// "'vm1' (10.0.0.5:40312)"
  std::string in_words() const;
  /// The order behind the first `size` bytes of an OPEN or CLOSE.
  wire::OpenOrder order_of(wire::ConstBytes message, std::size_t size) const {
    return extensions ? wire::order_of(message, size) : wire::OpenOrder{};
  }
};

}  // namespace rnbd
