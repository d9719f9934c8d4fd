// SPDX-License-Identifier: BSD-3-Clause
// Input: a side (1 byte: even the server, odd the client), then messages of a hostile peer, each
// with its length (1 byte) in front.
#include "rdma/core/auth/proof.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "tests/fuzz/fuzz.hpp"
#include "tests/fuzz/queue_pair.hpp"

using namespace rtrs;

namespace {

constexpr std::array<std::byte, 32> kSecret{};

/// Keeps the last message that was sent.
class KeepingQueuePair final : public fuzz::SilentQueuePair {
 public:
  Ticket send(ConstBytes message) override {
    last.assign(message.begin(), message.end());
    return 1;
  }
  std::vector<std::byte> last;
};

class Keys final : public auth::ServerKeys {
 public:
  auth::ServerKey find(std::string_view name) override {
    Identity user;
    user.name = name;
    return {kSecret, user, name == "nobody"};
  }
  auth::Nonce nonce() override { return {}; }
};

wire::Digest transcript_of(ConstBytes hello, ConstBytes challenge) {
  return auth::transcript({}, wire::copy_of<wire::AuthHello>(hello),
                          wire::copy_of<wire::AuthChallenge>(challenge));
}

/// The next message of the input; none: it has ended.
std::optional<ConstBytes> next(ConstBytes& input) {
  if (input.empty()) return std::nullopt;
  const auto size = std::min(static_cast<std::size_t>(input[0]), input.size() - 1);
  const ConstBytes message = input.subspan(1, size);
  input = input.subspan(1 + size);
  return message;
}

void be_server(ConstBytes input) {
  KeepingQueuePair pair;
  auth::ServerProof proof;
  proof.start(pair, std::make_shared<Keys>(), {});
  std::vector<std::byte> hello;
  while (const auto message = next(input)) {
    const Complaint complaint = proof.on_message(*message);
    if (complaint != nullptr) {
      fuzz::require(!proof.proven(), "who is refused has proven nothing");
      return;
    }
    if (!proof.proven()) {
      hello.assign(message->begin(), message->end());
      fuzz::require(wire::decode_auth_challenge(pair.last).has_value(), "a hello is challenged");
      continue;
    }
    const auto right = auth::prove(kSecret, transcript_of(hello, pair.last));
    fuzz::require(wire::decode_auth_proof(*message).value().proof == right.client,
                  "only the right proof is taken");
    fuzz::require(proof.user().name != "nobody", "a made-up key lets nobody in");
    return;
  }
}

void be_client(ConstBytes input) {
  KeepingQueuePair pair;
  auth::ClientProof proof;
  proof.start(pair, {"host1", kSecret}, {}, {});
  const auto hello = pair.last;
  while (const auto message = next(input)) {
    const Complaint complaint = proof.on_message(*message, {});
    fuzz::require(complaint == nullptr || proof.refusal() >= 0, "a refusal is an errno");
    if (complaint != nullptr) return;
    const auto right = auth::prove(kSecret, transcript_of(hello, *message));
    fuzz::require(
        proof.proven() && wire::copy_of<wire::AuthChallenge>(*message).proof == right.server,
        "only a server with the key is believed");
    fuzz::require(wire::decode_auth_proof(pair.last).value().proof == right.client,
                  "and is answered");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const bool server = input.take<std::uint8_t>() % 2 == 0;
  server ? be_server(input.rest()) : be_client(input.rest());
  return 0;
}
