// SPDX-License-Identifier: BSD-3-Clause
// Requests of clients, and a small server's limits.
#pragma once

#include <cstdint>

#include "rdma/core/admission.hpp"

namespace rtrs::admission_test {

inline constexpr std::uint32_t kExactlyOnce = wire::kFeatureExactlyOnce;

inline wire::ConnectParameters request(std::uint8_t session, std::uint16_t cid,
                                       std::uint16_t count = 3, std::uint8_t path = 0,
                                       std::uint32_t features = 0) {
  wire::ConnectParameters parameters;
  parameters.cid = cid;
  parameters.cid_count = count;
  parameters.session_uuid.fill(session);
  parameters.path_uuid.fill(static_cast<std::uint8_t>(session + 100 + path));
  parameters.first_connection = true;
  parameters.extension.present = features != 0;
  parameters.extension.features = features;
  return parameters;
}

inline AdmissionLimits limits() {
  return {.max_sessions = 4,
          .max_paths_per_session = 3,
          .max_connections_per_path = 8,
          .path_memory = 100,
          .memory_limit = 1000,
          .features = kExactlyOnce};
}

}  // namespace rtrs::admission_test
