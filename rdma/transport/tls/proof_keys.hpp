// SPDX-License-Identifier: BSD-3-Clause
// The shared keys of TLS as those of the mutual proof, and random numbers for it.
#pragma once

#include <memory>

#include "rdma/core/auth/proof.hpp"
#include "rdma/transport/tls/credentials.hpp"

namespace rtrs::tls {

/// The keys of a server. A name that is not among them gets a random secret.
std::shared_ptr<auth::ServerKeys> proof_keys(std::shared_ptr<const Credentials> keys);

/// Errors: aborts when the system has no random numbers.
auth::Nonce random_nonce();

}  // namespace rtrs::tls
