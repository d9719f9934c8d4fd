// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/auth/proof.hpp"

#include <cerrno>
#include <span>
#include <utility>

#include "rdma/core/auth/mac.hpp"

namespace rtrs::auth {
namespace {

constexpr std::string_view kSalt = "rtrs-auth-v1";
/// HKDF-Expand for the first 32 bytes. Source: RFC 5869.
Digest derive(const Digest& extracted, std::string_view purpose) {
  constexpr std::byte kFirstBlock{1};
  return hmac_sha256(wire::bytes_of(extracted),
                     {std::as_bytes(std::span{purpose}), ConstBytes{&kFirstBlock, 1}});
}

constexpr const char* kOtherKey =
    "the server does not have this key, or another secret of its name";

}  // namespace

Digest transcript(const Context& context, const wire::AuthHello& hello,
                  const wire::AuthChallenge& challenge) {
  constexpr std::size_t kOfConnectionManager = offsetof(wire::ConnectRequest, magic);
  return sha256({wire::bytes_of(context.request).subspan(kOfConnectionManager),
                 wire::bytes_of(context.response), wire::bytes_of(context.binding),
                 wire::bytes_of(hello),
                 wire::bytes_of(challenge).first(offsetof(wire::AuthChallenge, proof))});
}

Proofs prove(ConstBytes secret, const Digest& transcript) {
  Digest extracted = hmac_sha256(std::as_bytes(std::span{kSalt}), {secret});
  Digest of_server = derive(extracted, "server proof");
  Digest of_client = derive(extracted, "client proof");
  Proofs proofs;
  proofs.server = hmac_sha256(wire::bytes_of(of_server), {wire::bytes_of(transcript)});
  proofs.client = hmac_sha256(wire::bytes_of(of_client),
                              {wire::bytes_of(transcript), wire::bytes_of(proofs.server)});
  for (Digest* key : {&extracted, &of_server, &of_client}) forget(*key);
  return proofs;
}

// ---- Client -------------------------------------------------------------------------------------

void ClientProof::start(QueuePair& queue_pair, ClientKey key, const Nonce& nonce,
                        const Context& context) {
  queue_pair_ = &queue_pair;
  key_ = std::move(key);
  context_ = context;
  context_.binding = queue_pair.binding();
  hello_ = wire::make_auth_hello(nonce, key_.name);
  queue_pair.post_receives(1, sizeof(wire::AuthChallenge));
  queue_pair.send(wire::bytes_of(hello_));
  queue_pair.flush();
}

Complaint ClientProof::on_message(ConstBytes message, std::optional<std::uint32_t>) {
  const auto challenge = wire::decode_auth_challenge(message);
  if (!challenge) return to_string(challenge.error());
  if (proven_) return "a second challenge";
  const int error = wire::error_of(*challenge);
  if (error != 0) return refuse(error, "the server refuses the proof");
  const Proofs proofs = prove(key_.secret, transcript(context_, hello_, *challenge));
  if (!equal(proofs.server, challenge->proof)) return refuse(EACCES, kOtherKey);
  proven_ = true;
  queue_pair_->send(wire::bytes_of(wire::AuthProof{.proof = proofs.client}));
  queue_pair_->flush();
  return nullptr;
}

Complaint ClientProof::refuse(int error, Complaint why) {
  refusal_ = error;
  why_not_ = why;
  return why;
}

// ---- Server -------------------------------------------------------------------------------------

void ServerProof::start(QueuePair& queue_pair, std::shared_ptr<ServerKeys> keys,
                        const Context& context) {
  queue_pair_ = &queue_pair;
  keys_ = std::move(keys);
  context_ = context;
  queue_pair.post_receives(1, sizeof(wire::AuthHello));
  queue_pair.post_receives(1, sizeof(wire::AuthProof));
}

Complaint ServerProof::on_message(ConstBytes message) {
  const Complaint complaint = state_ == State::hello ? on_hello(message) : on_proof(message);
  if (complaint != nullptr) state_ = State::refused;
  return complaint;
}

Complaint ServerProof::on_hello(ConstBytes message) {
  const auto hello = wire::decode_auth_hello(message);
  if (!hello) return "the client does not say which key it has";
  claimed_ = wire::key_name_of(*hello);
  const ServerKey key = keys_->find(claimed_);
  user_ = key.user;
  made_up_ = key.made_up;
  // Before the connection stood, it had none.
  context_.binding = queue_pair_->binding();
  wire::AuthChallenge challenge;
  challenge.nonce = keys_->nonce();
  const Proofs proofs = prove(key.secret, transcript(context_, *hello, challenge));
  challenge.proof = proofs.server;
  expected_ = proofs.client;
  state_ = State::proof;
  queue_pair_->send(wire::bytes_of(challenge));
  return nullptr;
}

Complaint ServerProof::on_proof(ConstBytes message) {
  const auto proof = wire::decode_auth_proof(message);
  if (!proof) return "the client does not prove that it has the key";
  const bool right = equal(proof->proof, expected_);
  if (!right || made_up_ || state_ != State::proof) return "the client does not have the key";
  state_ = State::proven;
  keys_.reset();
  return nullptr;
}

}  // namespace rtrs::auth
