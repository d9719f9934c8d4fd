// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/auth/mac.hpp"

#include <nettle/hmac.h>
#include <nettle/memops.h>
#include <nettle/sha2.h>

#include <cstring>

namespace rtrs::auth {
namespace {

const std::uint8_t* data_of(ConstBytes bytes) {
  return reinterpret_cast<const std::uint8_t*>(bytes.data());
}

}  // namespace

Digest sha256(Pieces pieces) {
  sha256_ctx context;
  sha256_init(&context);
  for (const ConstBytes piece : pieces) sha256_update(&context, piece.size(), data_of(piece));
  Digest digest;
  sha256_digest(&context, digest.size(), digest.data());
  return digest;
}

Digest hmac_sha256(ConstBytes key, Pieces pieces) {
  hmac_sha256_ctx context;
  hmac_sha256_set_key(&context, key.size(), data_of(key));
  for (const ConstBytes piece : pieces) hmac_sha256_update(&context, piece.size(), data_of(piece));
  Digest digest;
  hmac_sha256_digest(&context, digest.size(), digest.data());
  explicit_bzero(&context, sizeof(context));
  return digest;
}

bool equal(const Digest& a, const Digest& b) { return memeql_sec(a.data(), b.data(), a.size()); }

void forget(Digest& digest) { explicit_bzero(digest.data(), digest.size()); }

}  // namespace rtrs::auth
