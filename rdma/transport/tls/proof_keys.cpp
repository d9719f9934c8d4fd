// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tls/proof_keys.hpp"

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include <utility>

#include "rdma/wire/ensure.hpp"

namespace rtrs::tls {
namespace {

class ProofKeys final : public auth::ServerKeys {
 public:
  explicit ProofKeys(std::shared_ptr<const Credentials> keys)
      : keys_{std::move(keys)}, stranger_{random_nonce()} {}

  auth::ServerKey find(std::string_view key_name) override {
    const Secret* const secret = keys_->find(key_name);
    if (secret == nullptr) return {wire::bytes_of(stranger_), {}, /*made_up=*/true};
    Identity user;
    user.how = Identity::How::proof;
    user.name = identity_of(key_name);
    user.key = key_name;
    return {secret->bytes(), std::move(user), /*made_up=*/false};
  }
  auth::Nonce nonce() override { return random_nonce(); }

 private:
  std::shared_ptr<const Credentials> keys_;
  auth::Nonce stranger_;  ///< the secret of those who are not there
};

}  // namespace

std::shared_ptr<auth::ServerKeys> proof_keys(std::shared_ptr<const Credentials> keys) {
  return std::make_shared<ProofKeys>(std::move(keys));
}

auth::Nonce random_nonce() {
  auth::Nonce nonce;
  const int error = gnutls_rnd(GNUTLS_RND_RANDOM, nonce.data(), nonce.size());
  RTRS_ENSURE(error == 0);
  return nonce;
}

}  // namespace rtrs::tls
