// SPDX-License-Identifier: BSD-3-Clause
// The keys by which the simulated clients prove whose they are.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "rdma/core/auth/proof.hpp"
#include "tests/sim/world.hpp"

namespace sim {

/// The user of a client.
std::string user_of(NodeId client);
/// Somebody who has a key, too, and is no client: a client that proves to be it is an impostor.
inline constexpr const char* kOtherUser = "other";

using Secret = rtrs::auth::Digest;
/// Of a key of the server that clients mean, or of the foreign one.
Secret secret_of(const std::string& user, bool foreign);

rtrs::auth::Nonce draw_nonce(Rng& rng);

/// Every name has a key.
std::shared_ptr<rtrs::auth::ServerKeys> make_keys(World& world, bool foreign);

}  // namespace sim
