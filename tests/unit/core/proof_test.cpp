// SPDX-License-Identifier: BSD-3-Clause
// The mutual proof: its bytes, what it refuses, and that a path waits for all of it.
#include "rdma/core/auth/proof.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>
#include <vector>

#include "rdma/core/server/path.hpp"
#include "tests/unit/core/fake_queue_pair.hpp"
#include "tests/unit/core/server_bench.hpp"
#include "tests/unit/wire/hex.hpp"

namespace rtrs::test_proof {
namespace {

using auth::ClientProof;
using auth::Context;
using auth::ServerProof;
using ::test::from_hex;
using ::test::to_hex;

constexpr std::size_t kChallenge = 0, kClientProof = 1;

std::vector<std::byte> secret_of(std::uint8_t first) {
  std::vector<std::byte> secret(32);
  for (std::byte& byte : secret) byte = static_cast<std::byte>(first++);
  return secret;
}

auth::Nonce nonce_of(char c) {
  auth::Nonce nonce;
  nonce.fill(static_cast<std::uint8_t>(c));
  return nonce;
}

/// Knows host1 and host2.
class Keys final : public auth::ServerKeys {
 public:
  auth::ServerKey find(std::string_view name) override {
    const bool known = name == "host1" || name == "host2";
    Identity user;
    if (known)
      user = {.how = Identity::How::proof, .name = std::string{name}, .key = "", .cipher = ""};
    return {name == "host2" ? second : first, user, !known};
  }
  auth::Nonce nonce() override {
    auth::Nonce next = nonce_of('s');
    next[31] = static_cast<std::uint8_t>(next[31] + used++);
    return next;
  }

  std::vector<std::byte> first = secret_of(0), second = secret_of(100);
  std::uint8_t used = 0;
};

/// The records of the test vector in docs/protocol.md.
Context context_of(std::uint16_t cid = 0) {
  wire::ConnectParameters request;
  request.cid = cid;
  request.cid_count = 5;
  request.reconnect_count = 1;
  request.path_uuid.fill('P');
  request.session_uuid.fill('S');
  request.first_connection = true;
  request.extension = {.present = true, .features = 0x10007};
  wire::AcceptParameters response;
  response.queue_depth = 256;
  response.max_io_size = 262144;
  response.max_header_size = 4096;
  response.extension = {.present = true,
                        .features = 0x10007,
                        .session_epoch = 0x1122334455667788,
                        .volatile_epoch = 1};
  return {.request = wire::encode(request), .response = wire::encode(response)};
}

/// Two ends; what one sends is handed to the other by hand.
struct Ends {
  explicit Ends(std::string name = "host1", std::uint8_t secret = 0) : key{secret_of(secret)} {
    server.start(server_pair, keys, context_of());
    client.start(client_pair, {std::move(name), key}, nonce_of('c'), context_of());
  }
  Complaint say_hello() { return server.on_message(client_pair.posts.at(0).data); }
  Complaint challenge() { return client.on_message(server_pair.posts.at(kChallenge).data, {}); }
  Complaint prove() { return server.on_message(client_pair.posts.at(kClientProof).data); }

  std::shared_ptr<Keys> keys = std::make_shared<Keys>();
  std::vector<std::byte> key;
  FakeQueuePair client_pair, server_pair;
  ClientProof client;
  ServerProof server;
};

TEST_CASE("the test vector of docs/protocol.md") {
  const Context context = context_of();
  const auto hello = wire::make_auth_hello(nonce_of('c'), "host1");
  const wire::AuthChallenge challenge{.nonce = nonce_of('s')};
  const auto hash = auth::transcript(context, hello, challenge);
  CHECK(to_hex(wire::bytes_of(hash)) ==
        to_hex(from_hex("d37c1bb4025ad29113f436cd8714ef5692d15fb1c89ef43083ec2428ae61a651")));
  const auto secret = secret_of(0);
  const auto proofs = auth::prove(secret, hash);
  CHECK(to_hex(wire::bytes_of(proofs.server)) ==
        to_hex(from_hex("02ac37ed44319b6e69ae42db07d1208f83a501d250436e6192874f3940953fc4")));
  CHECK(to_hex(wire::bytes_of(proofs.client)) ==
        to_hex(from_hex("bd92f63887f8b6f0b4acf6325436c30b5494f9659b3d2ed463fd2105e1c3d1f7")));
}

TEST_CASE("both ends prove that they have the key") {
  Ends ends;
  CHECK(ends.server_pair.receives == 2);
  CHECK(ends.client_pair.receives == 1);
  REQUIRE(ends.say_hello() == nullptr);
  CHECK_FALSE(ends.server.proven());
  REQUIRE(ends.challenge() == nullptr);
  CHECK(ends.client.proven());
  REQUIRE(ends.prove() == nullptr);
  CHECK(ends.server.proven());
  CHECK(ends.server.user().name == "host1");
}

TEST_CASE("the client sees that the server has another secret of the name, or does not know it") {
  for (const auto& name : {"host1", "nobody"}) {
    Ends ends{name, 7};
    REQUIRE(ends.say_hello() == nullptr);
    CHECK(ends.challenge() != nullptr);
    CHECK(ends.client.refusal() == EACCES);
    CHECK_FALSE(ends.client.proven());
    CHECK(ends.client_pair.posts.size() == 1);
    CHECK(ends.server.claimed() == name);
  }
}

TEST_CASE("a made-up secret lets nobody in, not even who knows it") {
  Ends ends{"nobody", 0};
  REQUIRE(ends.say_hello() == nullptr);
  REQUIRE(ends.challenge() == nullptr);
  CHECK(ends.prove() != nullptr);
  CHECK_FALSE(ends.server.proven());
}

TEST_CASE("a proof is good for one connection only") {
  Ends first;
  REQUIRE(first.say_hello() == nullptr);
  REQUIRE(first.challenge() == nullptr);
  Ends again;
  again.keys->used = 1;  // the server's next random number
  REQUIRE(again.server.on_message(first.client_pair.posts[0].data) == nullptr);
  CHECK(again.server.on_message(first.client_pair.posts[kClientProof].data) != nullptr);
  CHECK_FALSE(again.server.proven());
}

TEST_CASE("the server's own proof sent back proves nothing") {
  Ends ends;
  REQUIRE(ends.say_hello() == nullptr);
  const auto challenge =
      wire::decode_auth_challenge(ends.server_pair.posts.at(kChallenge).data).value();
  CHECK(ends.server.on_message(wire::bytes_of(wire::AuthProof{.proof = challenge.proof})) !=
        nullptr);
}

TEST_CASE("both records are part of the proof") {
  const auto changed = [](std::size_t at, bool request) {
    Ends ends;
    Context context = context_of();
    auto* const record = request ? reinterpret_cast<std::uint8_t*>(&context.request)
                                 : reinterpret_cast<std::uint8_t*>(&context.response);
    record[at] ^= 1;
    ends.client.start(ends.client_pair, {"host1", ends.key}, nonce_of('c'), context);
    REQUIRE(ends.say_hello() == nullptr);
    return ends.challenge() != nullptr;
  };
  for (std::size_t at = 0; at < sizeof(wire::ConnectRequest); ++at) {
    CHECK(changed(at, true) == (at >= 2));  // the connection manager's bytes
    CHECK(changed(at, false));
  }
}

TEST_CASE("messages that are none, or come twice, are refused for good") {
  const auto refused = [](std::size_t at, std::size_t size) {
    Ends ends;
    auto hello = ends.client_pair.posts.at(0).data;
    hello[at] ^= std::byte{0x80};
    hello.resize(size);
    const bool first = ends.server.on_message(hello) != nullptr;
    return first && ends.say_hello() != nullptr;
  };
  CHECK(refused(0, 128));    // type
  CHECK(refused(2, 128));    // version
  CHECK(refused(4, 128));    // reserved
  CHECK(refused(40, 128));   // the name has a character that is none
  CHECK(refused(103, 128));  // bytes behind the name
  CHECK(refused(127, 128));  // reserved
  CHECK(refused(8, 127));
  Ends twice;
  REQUIRE(twice.say_hello() == nullptr);
  CHECK(twice.say_hello() != nullptr);
  Ends refusal;
  CHECK(refusal.client.on_message(
            wire::bytes_of(wire::AuthChallenge{.error = static_cast<std::uint16_t>(-EACCES)}),
            {}) != nullptr);
  CHECK(refusal.client.refusal() == EACCES);
}

/// A path of two connections that have to prove whose they are.
struct Bench {
  Bench() {
    for (std::uint16_t cid = 0; cid < 2; ++cid) {
      handlers[cid] = &path.add(cid, servers[cid], context_of(cid).request);
    }
  }
  ~Bench() {
    path.close();
    session.on_path_closed(path);
  }
  Complaint prove(std::uint16_t cid, const char* name, std::uint8_t secret) {
    const auto key = secret_of(secret);
    FakeQueuePair pair;
    ClientProof client;
    client.start(pair, {name, key}, nonce_of('c'),
                 {context_of(cid).request, wire::encode(path.accept_parameters())});
    if (const Complaint wrong = tell(cid, pair.posts.at(0).data)) return wrong;
    REQUIRE(client.on_message(servers[cid].posts.back().data, {}) == nullptr);
    return tell(cid, pair.posts.at(kClientProof).data);
  }
  Complaint tell(std::uint16_t cid, ConstBytes message) {
    return handlers[cid]->on_message(message, {});
  }
  Complaint say_name() { return tell(0, wire::bytes_of(wire::encode_info_request("vm"))); }

  test::Handler handler;
  test::SessionOwner session_owner;
  ServerSession session{{.queue_depth = 4,
                         .max_io_size = 4096,
                         .max_header_size = 4096,
                         .features = wire::kFeatureAuthentication,
                         .session_epoch = 1},
                        handler,
                        session_owner};
  test::PathOwner owner{session, {.cid_count = 2, .keys = std::make_shared<Keys>()}};
  ServerPath& path = owner.path;
  std::array<FakeQueuePair, 2> servers;
  std::array<QueuePairHandler*, 2> handlers{};
};

TEST_CASE("a path serves when all its connections have proven the user") {
  Bench bench;
  REQUIRE(bench.prove(0, "host1", 0) == nullptr);
  REQUIRE(bench.say_name() == nullptr);  // overtakes the proof of connection 1
  CHECK(bench.path.state() == ServerPathState::connecting);
  CHECK(bench.owner.admissions == 0);
  REQUIRE(bench.prove(1, "host1", 0) == nullptr);
  CHECK(bench.path.state() == ServerPathState::connected);
  CHECK(bench.owner.admissions == 1);
  CHECK(bench.session.identity.name == "host1");
  CHECK(bench.handler.ups == 1);
}

TEST_CASE("a path whose user is at a limit is told so, and nothing else") {
  Bench bench;
  bench.owner.refusal = {"no room", ENOMEM};
  REQUIRE(bench.prove(0, "host1", 0) == nullptr);
  REQUIRE(bench.prove(1, "host1", 0) == nullptr);
  REQUIRE(bench.say_name() == nullptr);
  CHECK(bench.path.turned_down() == std::string_view{"no room"});
  CHECK(bench.path.state() == ServerPathState::connecting);
  CHECK(bench.handler.ups == 0);
  CHECK(wire::refusal_of_info_response(bench.servers[0].posts.back().data) == ENOMEM);
  CHECK(bench.say_name() != nullptr);
  CHECK(bench.owner.admissions == 1);
}

TEST_CASE("an info request without a proof is refused") {
  Bench bench;
  CHECK(bench.say_name() != nullptr);
  CHECK(bench.owner.admissions == 0);
}

TEST_CASE("connections of different users are no path") {
  Bench bench;
  REQUIRE(bench.prove(0, "host1", 0) == nullptr);
  CHECK(bench.prove(1, "host2", 100) != nullptr);
  CHECK(bench.owner.admissions == 0);
}

TEST_CASE("a second info request is refused while proofs are missing") {
  Bench bench;
  REQUIRE(bench.prove(0, "host1", 0) == nullptr);
  REQUIRE(bench.say_name() == nullptr);
  CHECK(bench.say_name() != nullptr);
}

}  // namespace
}  // namespace rtrs::test_proof
