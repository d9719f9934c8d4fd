// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "rdma/core/server/path.hpp"
#include "rdma/core/server/session.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"
#include "tests/unit/core/fake_queue_pair.hpp"
#include "tests/unit/core/server_owners.hpp"

namespace rtrs::server_session_test {
namespace {

class Handler final : public ServerHandler {
 public:
  void* on_session_up(ServerSession&) override {
    ++ups;
    return this;
  }
  void on_session_down(ServerSession&) override { ++downs; }
  void on_paths_changed(ServerSession& session) override {
    paths.push_back(session.connected_paths());
  }
  void on_request(ServerSession&, ServerRequest& request) override { last = &request; }

  int ups = 0;
  int downs = 0;
  std::vector<unsigned> paths;  ///< connected, at each change
  ServerRequest* last = nullptr;
};

ServerSessionOptions options() {
  ServerSessionOptions o;
  o.queue_depth = 4;
  o.max_io_size = 4096;
  o.max_header_size = 4096;
  return o;
}

ServerPathOptions path_options(bool new_keys = false) {
  return {.cid_count = 2, .new_keys = new_keys, .heartbeat_interval = std::chrono::seconds{1}};
}

/// A session with two connections, connected unless told otherwise.
struct Bench {
  explicit Bench(bool exchange = true, ServerSessionOptions o = options(), bool new_keys = false)
      : session{o, handler, session_owner}, owner{session, path_options(new_keys)} {
    control = &path.add(0, control_pair);
    io = &path.add(1, io_pair);
    if (!exchange) return;
    REQUIRE(control->on_message(wire::bytes_of(wire::encode_info_request("host")), {}) == nullptr);
    control_pair.posts.clear();
  }
  /// Puts a read of `length` bytes with a 4-byte message into chunk `buffer` and rings.
  Complaint read(std::uint32_t buffer, std::uint32_t length, std::uint16_t flags = 0) {
    std::byte* at = memory.data() + buffer * 8192 + length;
    std::memcpy(at, "test", 4);
    const wire::ReadHeader header{
        .type = 3, .user_length = 4, .flags = flags, .descriptor_count = 1};
    const wire::Descriptor descriptor{.address = 0xABC000, .key = 55, .length = length};
    std::memcpy(at + 4, &header, 8);
    std::memcpy(at + 12, &descriptor, 16);
    return io->on_write_with_immediate(encode(wire::RequestImmediate{buffer, length + 4}, 4), 28);
  }

  Handler handler;
  FakeQueuePair control_pair, io_pair;
  test::SessionOwner session_owner;
  ServerSession session;
  test::PathOwner owner;
  ServerPath& path = owner.path;
  std::vector<std::byte>& memory = owner.memory;
  QueuePairHandler* control = nullptr;
  QueuePairHandler* io = nullptr;
};

using Kind = FakeQueuePair::Post::Kind;

TEST_CASE("the handler hears when paths of a session come and go, and of none that never came") {
  Bench bench;
  CHECK(bench.handler.paths == std::vector<unsigned>{1});
  test::PathOwner other{bench.session, path_options()};
  other.path.close();
  bench.session.on_path_closed(other.path);
  CHECK(bench.handler.paths == std::vector<unsigned>{1});
  bench.path.close();
  bench.session.on_path_closed(bench.path);
  CHECK(bench.handler.paths == std::vector<unsigned>{1, 0});
  CHECK(bench.handler.downs == 1);
}

TEST_CASE("the info response comes when everything is ready, and describes all chunks") {
  Bench bench{false};
  CHECK(bench.control_pair.receives == 1);
  CHECK(bench.handler.ups == 0);
  CHECK(bench.control->on_message(wire::bytes_of(wire::encode_info_request("host")), {}) ==
        nullptr);
  CHECK(bench.handler.ups == 1);
  CHECK(bench.session.name == "host");
  CHECK(bench.io_pair.receives >= 4);
  REQUIRE(bench.control_pair.posts.size() == 1);
  CHECK(bench.control_pair.posts[0].kind == Kind::send);
  const auto chunks = wire::decode_info_response(bench.control_pair.posts[0].data, 4, 8192);
  REQUIRE(chunks.has_value());
  CHECK(chunks->size() == 4);
}

TEST_CASE("the exchange is refused when its conditions are not met") {
  Bench bench{false};
  const auto exchange = [&] {
    return bench.control->on_message(wire::bytes_of(wire::encode_info_request("host")), {});
  };
  SUBCASE("the name is taken") {
    bench.owner.refusal = {"no", 0};
    CHECK(exchange() != nullptr);
  }
  SUBCASE("there is no memory") {
    bench.owner.has_memory = false;
    CHECK(exchange() != nullptr);
  }
  SUBCASE("it comes on another connection") {
    CHECK(bench.io->on_message(wire::bytes_of(wire::encode_info_request("host")), {}) != nullptr);
  }
  SUBCASE("it is garbage") {
    CHECK(bench.control->on_message(std::vector<std::byte>(272, std::byte{0xFF}), {}) != nullptr);
  }
  CHECK(bench.handler.ups == 0);
  CHECK(bench.control_pair.posts.empty());
}

TEST_CASE("a read is answered by one write that carries data and immediate") {
  Bench bench;
  REQUIRE(bench.read(2, 512) == nullptr);
  REQUIRE(bench.handler.last != nullptr);
  CHECK(std::memcmp(bench.handler.last->message.data(), "test", 4) == 0);
  std::memset(bench.handler.last->data.data(), 0x5A, 512);
  bench.handler.last->finish(0);
  REQUIRE(bench.io_pair.posts.size() == 1);
  const auto& post = bench.io_pair.posts[0];
  CHECK(post.kind == Kind::write_imm);
  CHECK(post.to.address == 0xABC000);
  CHECK(post.to.key == 55);
  CHECK(post.data == std::vector<std::byte>(512, std::byte{0x5A}));
  CHECK(post.immediate == 0x1000'0002);
}

TEST_CASE("a failed read is answered by its errno and no data") {
  Bench bench;
  REQUIRE(bench.read(2, 512) == nullptr);
  bench.handler.last->finish(EIO);
  REQUIRE(bench.io_pair.posts.size() == 1);
  CHECK(bench.io_pair.posts[0].data.empty());
  CHECK(bench.io_pair.posts[0].immediate == encode(wire::ResponseImmediate{2, EIO}));
}

TEST_CASE("a read that wants its key invalidated gets data, invalidation and immediate apart") {
  Bench bench;
  REQUIRE(bench.read(1, 512, wire::kNeedInvalidate) == nullptr);
  SUBCASE("on success") {
    bench.handler.last->finish(0);
    REQUIRE(bench.io_pair.posts.size() == 3);
    CHECK(bench.io_pair.posts[0].kind == Kind::write);
    CHECK(bench.io_pair.posts[1].kind == Kind::send_inv);
    CHECK(bench.io_pair.posts[1].to.key == 55);
    CHECK(bench.io_pair.posts[2].immediate == 0x2000'0001);
  }
  SUBCASE("on failure") {
    bench.handler.last->finish(EIO);
    REQUIRE(bench.io_pair.posts.size() == 2);
    CHECK(bench.io_pair.posts[0].kind == Kind::send_inv);
    CHECK(bench.io_pair.posts[1].immediate == 0x2028'0001);
  }
}

TEST_CASE("the message is out of the client's reach before anybody looks at it") {
  Bench bench;
  REQUIRE(bench.read(0, 64) == nullptr);
  std::memset(bench.memory.data(), 0xFF, 8192);
  CHECK(std::memcmp(bench.handler.last->message.data(), "test", 4) == 0);
  bench.handler.last->finish(0);
}

TEST_CASE("heartbeats are answered on connection 0, and everything counts as life") {
  Bench bench;
  CHECK(bench.control->on_write_with_immediate(wire::kHeartbeat, 0) == nullptr);
  REQUIRE(bench.control_pair.posts.size() == 1);
  CHECK(bench.control_pair.posts[0].immediate == wire::kHeartbeatAck);
  auto& path = bench.path;
  path.start_heartbeat(Instant{});
  for (int second = 1; second < 60; ++second) {
    if (second % 4 == 0) {
      REQUIRE(bench.read(static_cast<std::uint32_t>(second / 4 % 4), 64) == nullptr);
      bench.handler.last->finish(0);
    }
    CHECK(path.on_tick(Instant{std::chrono::seconds{second}}) != Heartbeat::Verdict::dead);
  }
}

TEST_CASE("a client that never reads its answers loses the path before they pile up") {
  Bench bench;
  bench.control_pair.sent_up_to = bench.io_pair.sent_up_to = 0;
  Complaint complaint = nullptr;
  int arrivals = 0;
  SUBCASE("heartbeats") {
    while (complaint == nullptr && ++arrivals < 10'000) {
      complaint = bench.control->on_write_with_immediate(wire::kHeartbeat, 0);
    }
  }
  SUBCASE("requests") {
    while (complaint == nullptr && ++arrivals < 10'000) {
      complaint = bench.read(0, 64);
      if (complaint == nullptr) bench.handler.last->finish(0);
    }
  }
  CHECK(complaint != nullptr);
  CHECK(arrivals > 1000);
}

TEST_CASE("a session ends only when its last request has ended, and answers nobody then") {
  Bench bench;
  REQUIRE(bench.read(0, 64) == nullptr);
  bench.path.close();
  bench.session.on_path_closed(bench.path);
  CHECK(bench.handler.downs == 0);
  CHECK_FALSE(bench.session.gone());
  bench.handler.last->finish(0);
  CHECK(bench.handler.downs == 1);
  CHECK(bench.session.gone());
  CHECK(bench.session_owner.gone == 1);
  CHECK(bench.io_pair.posts.empty());
}

TEST_CASE("a session that never came up goes without a word to the handler") {
  Bench bench{false};
  bench.path.close();
  bench.session.on_path_closed(bench.path);
  CHECK(bench.session.gone());
  CHECK(bench.handler.ups + bench.handler.downs == 0);
}

TEST_CASE("new keys: the accept says so, and every chunk has a key of its own") {
  CHECK_FALSE(Bench{}.path.accept_parameters().new_rkey);
  Bench bench{false, options(), /*new_keys=*/true};
  CHECK(bench.path.accept_parameters().new_rkey);
  REQUIRE(bench.control->on_message(wire::bytes_of(wire::encode_info_request("host")), {}) ==
          nullptr);
  const auto chunks = wire::decode_info_response(bench.control_pair.posts.at(0).data, 4, 8192);
  REQUIRE(chunks.has_value());
  CHECK((*chunks)[2].key == 0x102);
  CHECK((*chunks)[3].key == 0x103);
  CHECK(bench.io_pair.exposed.empty());
}

TEST_CASE("new keys: a request is looked at when its chunk is closed to the client, not before") {
  Bench bench{true, options(), /*new_keys=*/true};
  REQUIRE(bench.read(1, 512) == nullptr);
  CHECK(bench.handler.last == nullptr);
  CHECK(bench.io_pair.revocations[1] == 1);
  SUBCASE("another request for the same chunk breaks the path meanwhile") {
    CHECK(bench.read(1, 512) != nullptr);
  }
  SUBCASE("what the client changed before that is judged, what it told first is not") {
    std::memset(bench.memory.data() + 8192 + 512, 0xFF, 64);
    CHECK(bench.io->on_revoked(1) != nullptr);
    CHECK(bench.handler.last == nullptr);
  }
  SUBCASE("then it is carried out") {
    REQUIRE(bench.io->on_revoked(1) == nullptr);
    REQUIRE(bench.handler.last != nullptr);
    CHECK(bench.handler.last->data.size() == 512);
    bench.handler.last->finish(0);
  }
}

TEST_CASE("new keys: a reply is data, then a message with the chunk's next key") {
  Bench bench{true, options(), /*new_keys=*/true};
  REQUIRE(bench.read(1, 512) == nullptr);
  REQUIRE(bench.io->on_revoked(1) == nullptr);
  bench.handler.last->finish(0);
  const auto& posts = bench.io_pair.posts;
  REQUIRE(posts.size() == 2);
  CHECK(posts[0].kind == Kind::write);
  CHECK(posts[0].data.size() == 512);
  CHECK(posts[1].kind == Kind::send_imm);
  const auto message = wire::decode_rkey_message(posts[1].data, 1);
  REQUIRE(message.has_value());
  CHECK(message->key == 0x111);
  CHECK(bench.io_pair.exposed.contains(1));
  CHECK(bench.read(1, 512) == nullptr);  // the chunk is free again
}

TEST_CASE("new keys: an error, and an invalidation that was asked for, keep their order") {
  Bench bench{true, options(), /*new_keys=*/true};
  REQUIRE(bench.read(2, 512, /*flags=*/1) == nullptr);
  REQUIRE(bench.io->on_revoked(2) == nullptr);
  bench.handler.last->finish(EIO);
  const auto& posts = bench.io_pair.posts;
  REQUIRE(posts.size() == 2);
  CHECK(posts[0].kind == Kind::send_inv);
  CHECK(posts[1].kind == Kind::send_imm);
  CHECK(wire::type_of(posts[1].immediate) == wire::ImmediateType::io_response_with_invalidate);
  CHECK(wire::decode_response(posts[1].immediate).error == EIO);
}

TEST_CASE("an error of a write of a client without the extension is told later, all else at once") {
  ServerSessionOptions o = options();
  o.extension = false;
  Bench bench{true, o};
  bench.owner.delays = true;
  const auto write = [&](std::uint32_t buffer, int error) {
    std::byte* at = bench.memory.data() + buffer * 8192 + 512;
    std::memcpy(at, "test", 4);
    const wire::WriteHeader header{.type = 2, .user_length = 4};
    std::memcpy(at + 4, &header, 4);
    REQUIRE(bench.io->on_write_with_immediate(encode(wire::RequestImmediate{buffer, 516}, 4),
                                              520) == nullptr);
    bench.handler.last->finish(error);
  };
  write(0, 0);
  CHECK(bench.io_pair.posts.size() == 1);
  write(1, EIO);
  CHECK(bench.io_pair.posts.size() == 1);
  REQUIRE(bench.owner.delayed != nullptr);
  CHECK(bench.session.executing() == 1);
  bench.session.answer(*bench.owner.delayed, EIO);
  CHECK(bench.io_pair.posts.size() == 2);
  CHECK(bench.session.executing() == 0);
  REQUIRE(bench.read(2, 512) == nullptr);
  bench.handler.last->finish(EIO);
  CHECK(bench.io_pair.posts.size() == 3);
}

}  // namespace
}  // namespace rtrs::server_session_test
