// SPDX-License-Identifier: BSD-3-Clause
// Clients of a server that wants a proof, without the key or with that of another user.
#include "rdma/core/auth/proof.hpp"

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "rdma/wire/auth.hpp"
#include "tests/hostile/raw_session.hpp"

namespace rtrs::hostile::proof_test {
namespace {

using rnbd::wire::AccessMode;
using wire::bytes_of;

constexpr std::uint32_t kFeatures =
    wire::kFeatureAuthentication | wire::kFeatureExactlyOnce | wire::kFeatureUserMessages;
constexpr std::size_t kSecret = 32;

/// As tests/lab/scenarios/hostile.sh writes them into the server's file: the last digit of the
/// name.
std::vector<std::byte> secret_of(std::string_view name) {
  return std::vector<std::byte>(kSecret, static_cast<std::byte>(name.back()));
}

/// Connections whose requests were accepted, and nothing else.
struct Door {
  explicit Door(wire::ConnectParameters p = parameters(0, 2)) : first{std::move(p)} {
    first.extension.present = true;
    first.extension.features = kFeatures;
    for (std::uint16_t cid = 0; cid < first.cid_count; ++cid) {
      auto here = first;
      here.cid = cid;
      requests.push_back(wire::encode(here));
      connections.push_back(RawConnection::toward(target().host, target().port));
      connections.back()->receive(8);
      connections.back()->connect(bytes_of(requests.back()));
      const Answer answer = connections.back()->answer();
      REQUIRE(answer.error == 0);
      REQUIRE((connections.back()->accepted().extension.features & wire::kFeatureAuthentication) !=
              0);
    }
  }

  RawConnection& cid(std::size_t n) { return *connections.at(n); }
  void send(std::size_t on, ConstBytes message) {
    cid(on).post({.opcode = IBV_WR_SEND, .payload = message});
  }
  wire::AuthChallenge challenge(std::size_t on, const wire::AuthHello& hello) {
    send(on, bytes_of(hello));
    const auto arrival = cid(on).next();
    REQUIRE(arrival);
    const auto found = wire::decode_auth_challenge(arrival->message);
    REQUIRE(found);
    return *found;
  }
  auth::Proofs proofs(std::size_t on, const wire::AuthHello& hello,
                      const wire::AuthChallenge& challenge, std::string_view name) {
    const auth::Context context{
        .request = requests.at(on), .response = cid(on).response(), .binding = cid(on).binding()};
    return auth::prove(secret_of(name), auth::transcript(context, hello, challenge));
  }
  /// Returns the messages that did it.
  std::pair<wire::AuthHello, wire::AuthProof> prove(std::size_t on, std::string_view name) {
    wire::Nonce nonce{};
    nonce.fill(static_cast<std::uint8_t>(on + 1));
    const auto hello = wire::make_auth_hello(nonce, name);
    const auto answer = challenge(on, hello);
    const auto both = proofs(on, hello, answer, name);
    CHECK(both.server == answer.proof);
    const wire::AuthProof message{.proof = both.client};
    send(on, bytes_of(message));
    return {hello, message};
  }
  void send_info(const std::string& name, std::size_t on = 0) {
    send(on, bytes_of(wire::encode_info_request(name)));
  }
  /// No chunks, not one, before all is closed.
  bool stays_out() {
    bool all = true;
    for (auto& connection : connections) {
      while (const auto arrival = connection->next()) {
        const bool chunks = wire::decode_info_response(arrival->message, 48, 0x11000).has_value();
        CHECK_FALSE(chunks);
      }
      all = connection->is_closed() && all;
    }
    return all;
  }
  /// The errno that it is told in place of chunks.
  int refused(const std::string& name) {
    send_info(name);
    const auto arrival = cid(0).next();
    if (!arrival || arrival->message.size() < 8) return 0;
    std::int32_t error = 0;
    std::memcpy(&error, arrival->message.data() + 4, sizeof(error));
    return -error;
  }

  wire::ConnectParameters first;
  std::vector<wire::ConnectRequest> requests;
  std::vector<std::unique_ptr<RawConnection>> connections;
};

/// Has proven its name and is in.
struct Inside {
  explicit Inside(std::string_view user, const std::string& name,
                  wire::ConnectParameters p = parameters(0, 2))
      : door{std::move(p)} {
    door.prove(0, user);
    door.prove(1, user);
    door.send_info(name);
    const auto arrival = door.cid(0).next();
    REQUIRE(arrival);
    const auto& accepted = door.cid(0).accepted();
    const auto found =
        wire::decode_info_response(arrival->message, accepted.queue_depth, accepted.chunk_size());
    REQUIRE(found);
    chunks = *found;
  }
  bool works() {
    door.cid(0).post({.immediate = wire::kHeartbeat});
    while (const auto arrival = door.cid(0).next()) {
      if (arrival->immediate == wire::kHeartbeatAck) return true;
    }
    return false;
  }
  Door door;
  std::vector<wire::ChunkAddress> chunks;
};

TEST_CASE("proof: who has the key is in") {
  Inside owner{"host1", "owner"};
  CHECK(owner.works());
}

TEST_CASE("proof: who offers none is refused, be it Linux or one of ours") {
  for (const bool present : {false, true}) {
    auto p = parameters(0, 2);
    p.extension.present = present;
    p.extension.features = present ? kFeatures & ~wire::kFeatureAuthentication : 0U;
    CHECK(Caller{p}.answer.error == EACCES);
  }
}

TEST_CASE("proof: what is no proof closes the path, and nobody gets chunks") {
  Door door;
  const wire::Nonce nonce{7};
  SUBCASE("an info request in its place") { door.send_info("early"); }
  SUBCASE("an info request on each connection") {
    door.send_info("early", 1);
    door.send_info("early", 0);
  }
  SUBCASE("an info request after the challenge") {
    door.challenge(0, wire::make_auth_hello(nonce, "host1"));
    door.send_info("early");
  }
  SUBCASE("the proof of one connection only") {
    door.prove(0, "host1");
    door.send_info("half");
    door.send_info("half", 1);
  }
  SUBCASE("the server's own proof sent back") {
    const auto challenge = door.challenge(0, wire::make_auth_hello(nonce, "host1"));
    door.send(0, bytes_of(wire::AuthProof{.proof = challenge.proof}));
  }
  SUBCASE("the challenge sent back") {
    const auto challenge = door.challenge(0, wire::make_auth_hello(nonce, "host1"));
    door.send(0, bytes_of(challenge));
  }
  SUBCASE("the proof of a key that nobody has") {
    const auto hello = wire::make_auth_hello(nonce, "nobody");
    const auto challenge = door.challenge(0, hello);
    const auto both = door.proofs(0, hello, challenge, "nobody");
    CHECK(both.server != challenge.proof);
    door.send(0, bytes_of(wire::AuthProof{.proof = both.client}));
  }
  SUBCASE("another user's key for a name") {
    const auto hello = wire::make_auth_hello(nonce, "host1");
    const auto both = door.proofs(0, hello, door.challenge(0, hello), "host2");
    door.send(0, bytes_of(wire::AuthProof{.proof = both.client}));
  }
  SUBCASE("two users on one path") {
    door.prove(0, "host1");
    door.prove(1, "host2");
    door.send_info("both");
  }
  SUBCASE("a proof that was made for the other connection") {
    const auto [hello, proof] = door.prove(0, "host1");
    door.challenge(1, hello);
    door.send(1, bytes_of(proof));
  }
  SUBCASE("a hello that is too long") {
    const std::array<std::byte, 129> bytes{};
    door.send(0, bytes);
  }
  SUBCASE("a hello that is too short") {
    const auto hello = wire::make_auth_hello(nonce, "host1");
    door.send(0, bytes_of(hello).first(127));
  }
  SUBCASE("a proof that is too short") {
    const auto hello = wire::make_auth_hello(nonce, "host1");
    const auto both = door.proofs(0, hello, door.challenge(0, hello), "host1");
    const wire::AuthProof proof{.proof = both.client};
    door.send(0, bytes_of(proof).first(47));
  }
  SUBCASE("a hello without a name") { door.send(0, bytes_of(wire::AuthHello{.nonce = nonce})); }
  SUBCASE("a heartbeat") { door.cid(1).post({.immediate = wire::kHeartbeat}); }
  SUBCASE("a request") { door.cid(0).post({.immediate = 0}); }
  CHECK(door.stays_out());
}

TEST_CASE("proof: one that was recorded is worth nothing, for the same path or another") {
  for (const bool same : {true, false}) {
    Door recorded;
    const auto [hello, proof] = recorded.prove(0, "host1");
    auto p = same ? recorded.first : parameters(0, 2);
    ++p.reconnect_count;
    Door again{p};
    again.challenge(0, hello);
    again.send(0, bytes_of(proof));
    CHECK(again.stays_out());
  }
}

TEST_CASE("proof: another user neither joins a session nor ends its path, and finds it taken") {
  Inside owner{"host1", "owner"};
  auto beside = parameters(0, 2);
  beside.session_uuid = owner.door.first.session_uuid;
  auto again = owner.door.first;
  ++again.reconnect_count;
  for (const auto& p : {beside, again}) {
    Door thief{p};
    thief.prove(0, "host2");
    thief.prove(1, "host2");
    CHECK(thief.refused("owner") == EACCES);
    CHECK(owner.works());
  }
  Inside neighbour{"host2", "owner"};  // a name of his own
  CHECK(owner.works());
}

/// Keys of a path that stands, from a connection that has proven nothing, or another user's.
TEST_CASE("proof: keys of another path's memory are good for nothing") {
  Inside owner{"host1", "owner"};
  const RemoteMemory theirs{owner.chunks.front().address, owner.chunks.front().key};
  const std::array<std::byte, 512> bytes{};
  SUBCASE("before the proof") {
    Door door;
    door.cid(0).post({.opcode = IBV_WR_RDMA_WRITE, .payload = bytes, .to = theirs});
    CHECK(door.stays_out());
  }
  SUBCASE("before the proof, keys beside those of others") {
    for (std::uint32_t key = theirs.key - 4; key != theirs.key + 4; ++key) {
      Door door{parameters(0, 1)};
      door.cid(0).post(
          {.opcode = IBV_WR_RDMA_WRITE, .payload = bytes, .to = {theirs.address, key}});
      CHECK(door.stays_out());
    }
  }
  SUBCASE("after the proof of another") {
    Inside neighbour{"host2", "neighbour"};
    neighbour.door.cid(1).post({.opcode = IBV_WR_RDMA_WRITE, .payload = bytes, .to = theirs});
    CHECK(neighbour.door.cid(1).is_closed());
  }
  CHECK(owner.works());
}

}  // namespace
}  // namespace rtrs::hostile::proof_test
