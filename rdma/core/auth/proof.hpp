// SPDX-License-Identifier: BSD-3-Clause
// Both ends of a connection prove that they have the same key, without showing it. That is
// authentication: nothing is encrypted, and later messages are not protected.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "rdma/core/identity.hpp"
#include "rdma/core/queue_pair.hpp"
#include "rdma/wire/auth.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs::auth {

using wire::Digest;
using wire::Nonce;

/// The records that both ends have exchanged before the proof, as they were on the wire.
struct Context {
  wire::ConnectRequest request;
  wire::ConnectResponse response;
  Binding binding{};  ///< see QueuePair::binding()
};

struct Proofs {
  Digest server{};
  Digest client{};
};

/// A hash of all that both ends have said so far. It leaves out the challenge's proof, and the
/// first two bytes of the request, which the connection manager may change.
Digest transcript(const Context& context, const wire::AuthHello& hello,
                  const wire::AuthChallenge& challenge);
/// The proofs by which each end shows that it has `secret`.
///
/// Source: docs/protocol.md, authentication.
Proofs prove(ConstBytes secret, const Digest& transcript);

/// The key of a client. The secret must stay until ClientProof::proven().
struct ClientKey {
  std::string name;  ///< 1 to wire::kMaxAuthKeyName printable characters
  ConstBytes secret;
};

/// The client's side on one connection. Handles the arrivals on it until proven().
///
/// Threads: one at a time.
class ClientProof final : public QueuePairHandler {
 public:
  /// Receives of the largest challenge are posted, then the hello is sent.
  void start(QueuePair& queue_pair, ClientKey key, const Nonce& nonce, const Context& context);
  /// The server has proven that it has the key; our own proof is on its way.
  bool proven() const { return proven_; }
  /// The errno with which the server refused the proof, or did not prove anything itself; 0 =
  /// neither.
  int refusal() const { return refusal_; }
  /// As a sentence, or null.
  Complaint why_not() const { return why_not_; }
  const std::string& key_name() const { return key_.name; }

  [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t, std::uint32_t) override {
    return "an immediate before the proof";
  }
  [[nodiscard]] Complaint on_message(ConstBytes message,
                                     std::optional<std::uint32_t> immediate) override;

 private:
  [[nodiscard]] Complaint refuse(int error, Complaint why);

  QueuePair* queue_pair_ = nullptr;
  ClientKey key_;
  Context context_;
  wire::AuthHello hello_;
  bool proven_ = false;
  int refusal_ = 0;
  Complaint why_not_ = nullptr;
};

/// A key as a server finds it. The secret stays as long as the ServerKeys.
struct ServerKey {
  ConstBytes secret;
  Identity user;
  /// A made-up secret for a name that there is none of: nobody learns by the answer which there
  /// are, and no proof is right.
  bool made_up = false;
};

/// The keys by which a server knows its clients, and where its random numbers come from.
///
/// Threads: any.
class ServerKeys {
 public:
  virtual ~ServerKeys() = default;
  virtual ServerKey find(std::string_view key_name) = 0;
  virtual Nonce nonce() = 0;
};

/// The server's side on one connection.
///
/// Threads: one at a time.
class ServerProof {
 public:
  /// Posts the receives of hello and proof. To be called before the client learns that it is in.
  void start(QueuePair& queue_pair, std::shared_ptr<ServerKeys> keys, const Context& context);
  /// Takes a message that comes before proven(). A complaint: the client is refused.
  [[nodiscard]] Complaint on_message(ConstBytes message);
  bool proven() const { return state_ == State::proven; }
  /// The user, when it is proven.
  const Identity& user() const { return user_; }
  /// The key that the client says it has; "" before it has said so.
  const std::string& claimed() const { return claimed_; }

 private:
  enum class State : std::uint8_t { hello, proof, proven, refused };

  [[nodiscard]] Complaint on_hello(ConstBytes message);
  [[nodiscard]] Complaint on_proof(ConstBytes message);

  QueuePair* queue_pair_ = nullptr;
  std::shared_ptr<ServerKeys> keys_;
  Context context_;
  State state_ = State::hello;
  std::string claimed_;
  Identity user_;
  bool made_up_ = false;
  Digest expected_{};
};

}  // namespace rtrs::auth
