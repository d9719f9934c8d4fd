// SPDX-License-Identifier: BSD-3-Clause
// SHA-256 and HMAC over pieces, from Nettle, on which GnuTLS stands as well: without a state of its
// own, so that the simulator can replay it.
#pragma once

#include <initializer_list>

#include "rdma/wire/auth.hpp"

namespace rtrs::auth {

using wire::ConstBytes;
using wire::Digest;
using Pieces = std::initializer_list<ConstBytes>;

Digest sha256(Pieces pieces);
Digest hmac_sha256(ConstBytes key, Pieces pieces);

/// The time it takes tells nothing of where they differ.
bool equal(const Digest& a, const Digest& b);

/// Overwrites a digest that is no longer read; a compiler would leave the stores out.
void forget(Digest& digest);

}  // namespace rtrs::auth
