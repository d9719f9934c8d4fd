// SPDX-License-Identifier: BSD-3-Clause
// How the two ends of a path tell each other of its access.
#include <array>
#include <cerrno>

#include "rdma/core/client/path.hpp"
#include "tests/unit/core/server_bench.hpp"

namespace rtrs::test::access_test {
namespace {

using wire::PathAccess;

// ---- The server tells ---------------------------------------------------------------------------

ServerSessionOptions telling() {
  auto all = options(/*exactly_once=*/true);
  all.features |= wire::kFeatureAccessNotice;
  return all;
}

/// TestPath begins as non-optimized, by listener 0.
struct ServerBench {
  explicit ServerBench(ServerSessionOptions o = telling()) : session{o, handler, owner} {}
  Handler handler;
  SessionOwner owner;
  ServerSession session;
};

std::vector<std::uint32_t> told(const TestPath& path) {
  std::vector<std::uint32_t> all;
  for (const auto& post : path.pair.posts) all.push_back(post.immediate);
  return all;
}

TEST_CASE("access: all paths that came in by the listener are told, and answer") {
  ServerBench bench;
  TestPath a{bench.session}, b{bench.session};
  CHECK(a.path.notices().access_known());
  bench.session.set_access(1, PathAccess::inaccessible);
  CHECK(told(a).empty());
  bench.session.set_access(0, PathAccess::inaccessible);
  CHECK(told(a) == std::vector<std::uint32_t>{0xB000'0002});
  CHECK(told(b) == std::vector<std::uint32_t>{0xB000'0002});
  CHECK_FALSE(a.path.notices().access_known());
  REQUIRE(a.immediate(0xB000'0002) == nullptr);
  CHECK(a.path.notices().access_known());
  CHECK_FALSE(b.path.notices().access_known());
}

TEST_CASE("access: a client that has not answered is told the newest opinion only, once") {
  ServerBench bench;
  TestPath a{bench.session};
  bench.session.set_access(0, PathAccess::inaccessible);
  bench.session.set_access(0, PathAccess::non_optimized);
  bench.session.set_access(0, PathAccess::optimized);
  CHECK(a.pair.posts.size() == 1);
  REQUIRE(a.immediate(wire::access_immediate(PathAccess::inaccessible)) == nullptr);
  CHECK(told(a) == std::vector<std::uint32_t>{0xB000'0002, 0xB000'0000});
  bench.session.set_access(0, PathAccess::inaccessible);
  bench.session.set_access(0, PathAccess::optimized);
  REQUIRE(a.immediate(0xB000'0000) == nullptr);
  CHECK(a.pair.posts.size() == 2);  // nothing is new
  CHECK(a.path.notices().access_known());
}

TEST_CASE("access: what changes before the info exchange is told behind it") {
  ServerBench bench;
  PathOwner owner{bench.session, {.cid_count = 1}};
  ServerPath& path = owner.path;
  FakeQueuePair pair;
  QueuePairHandler& handler = path.add(0, pair);
  CHECK(path.accept_parameters().extension.access == PathAccess::optimized);
  bench.session.set_access(0, PathAccess::inaccessible);
  CHECK(pair.posts.empty());
  REQUIRE(handler.on_message(wire::bytes_of(wire::encode_info_request("host")), {}) == nullptr);
  REQUIRE(pair.posts.size() == 2);
  CHECK(pair.posts[0].kind == FakeQueuePair::Post::Kind::send);
  CHECK(pair.posts[1].immediate == 0xB000'0002);
  path.close();
}

TEST_CASE("access: peers that did not agree on notices get none") {
  for (const bool own : {true, false}) {
    ServerBench bench{options(own)};
    TestPath a{bench.session};
    bench.session.set_access(0, PathAccess::inaccessible);
    CHECK(a.pair.posts.empty());
    CHECK_FALSE(a.path.notices().access_known());
    CHECK(a.immediate(0xB000'0002) == nullptr);  // unknown to this session: ignored
  }
}

TEST_CASE("access: an answer to nothing, or with another value, breaks the path") {
  ServerBench bench;
  TestPath a{bench.session};
  CHECK(a.immediate(0xB000'0000) != nullptr);
  bench.session.set_access(0, PathAccess::inaccessible);
  CHECK(a.immediate(0xB000'0001) != nullptr);
  CHECK(a.immediate(0xB100'0002) != nullptr);
  CHECK(a.immediate(0xB000'0002) == nullptr);
  CHECK(a.immediate(0xB000'0002) != nullptr);
}

// ---- The client's path --------------------------------------------------------------------------

struct ClientBench {
  explicit ClientBench(std::uint32_t features = wire::kFeatureAccessNotice)
      : path{{.session_name = "test", .features = features}} {
    const wire::AcceptParameters accept{.queue_depth = 8,
                                        .max_io_size = 4096,
                                        .max_header_size = 4096,
                                        .extension = {.present = true,
                                                      .features = wire::kFeatureAccessNotice,
                                                      .access = PathAccess::non_optimized}};
    REQUIRE(path.on_answer(0, wire::bytes_of(wire::encode(accept))) == nullptr);
    path.start_exchange(control);
    const std::array chunks{wire::Descriptor{0x10000, 7, 8 * accept.chunk_size()}};
    REQUIRE(path.on_message(wire::encode_info_response(chunks), std::nullopt) == nullptr);
    control.posts.clear();
    control.receives = 0;
  }
  Complaint notice(std::uint32_t immediate) { return path.on_write_with_immediate(immediate, 0); }

  FakeQueuePair control;
  ClientPath path;
};

TEST_CASE("access: a notice counts at once, and is answered when it has been acted on") {
  ClientBench bench;
  CHECK(bench.path.access() == PathAccess::non_optimized);
  REQUIRE(bench.notice(0xB000'0002) == nullptr);
  CHECK(bench.path.access() == PathAccess::inaccessible);
  CHECK(bench.path.access_noticed());
  CHECK(bench.control.posts.empty());
  CHECK(bench.control.receives == 1);
  bench.path.acknowledge_access();
  CHECK_FALSE(bench.path.access_noticed());
  REQUIRE(bench.control.posts.size() == 1);
  CHECK(bench.control.posts[0].immediate == 0xB000'0002);
  bench.path.acknowledge_access();
  CHECK(bench.control.posts.size() == 1);
}

TEST_CASE("access: a new session is filled over an inaccessible path, since that is no I/O") {
  ClientBench bench;
  REQUIRE(bench.notice(0xB000'0002) == nullptr);
  ClientLane reopening{2, 1}, lane{1, 7};
  bench.path.attach_reopening(reopening, 0, 2, bench.control);
  bench.path.attach(lane, 0, 1, bench.control);
  const std::array<std::byte, 8> message{};
  Request open, request;
  open.message = request.message = message;
  lane.submit(request);
  CHECK(bench.control.posts.empty());
  reopening.submit(open);
  CHECK(bench.control.posts.size() == 1);
  lane.shut_down(EIO);
  reopening.shut_down(EIO);
}

TEST_CASE("access: a notice that is out of order breaks the path") {
  SUBCASE("an unknown value") {
    ClientBench bench;
    CHECK(bench.notice(0xB000'0003) != nullptr);
    CHECK(bench.notice(0xB800'0000) != nullptr);
    CHECK(bench.path.access() == PathAccess::non_optimized);
  }
  SUBCASE("not agreed on") {
    ClientBench bench{/*features=*/0};
    CHECK(bench.notice(0xB000'0000) != nullptr);
  }
  SUBCASE("before the last one was answered") {
    ClientBench bench;
    REQUIRE(bench.notice(0xB000'0000) == nullptr);
    CHECK(bench.notice(0xB000'0001) != nullptr);
  }
  SUBCASE("from a server that never reads the answers") {
    ClientBench bench;
    bench.control.sent_up_to = 0;
    Complaint complaint = nullptr;
    unsigned notices = 0;
    for (; complaint == nullptr && notices < 100'000; ++notices) {
      complaint = bench.notice(wire::access_immediate(static_cast<PathAccess>(notices % 2)));
      bench.path.acknowledge_access();
    }
    CHECK(complaint != nullptr);
    CHECK(bench.control.posts.size() < 10'000);
  }
}

}  // namespace
}  // namespace rtrs::test::access_test
