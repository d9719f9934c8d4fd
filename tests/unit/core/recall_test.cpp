// SPDX-License-Identifier: BSD-3-Clause
// How a server tells that it wants memory back, and how its client answers.
#include <array>

#include "rdma/core/client/path.hpp"
#include "tests/unit/core/server_bench.hpp"

namespace rtrs::test::recall_test {
namespace {

ServerSessionOptions with_memory() {
  auto all = options(/*exactly_once=*/true);
  all.features |= wire::kFeatureMemoryPaths;
  return all;
}

struct ServerBench {
  explicit ServerBench(ServerSessionOptions o = with_memory()) : session{o, handler, owner} {}
  Handler handler;
  SessionOwner owner;
  ServerSession session;
};

std::vector<std::uint32_t> told(const TestPath& path) {
  std::vector<std::uint32_t> all;
  for (const auto& post : path.pair.posts) all.push_back(post.immediate);
  return all;
}

TEST_CASE("recall: it is told over one path, and the next one when that was answered") {
  ServerBench bench;
  TestPath a{bench.session}, b{bench.session};
  CHECK(bench.session.recall());
  CHECK(told(a) == std::vector<std::uint32_t>{0xC000'0001});
  CHECK(bench.session.recall());
  CHECK(bench.session.recall());
  CHECK(a.pair.posts.size() + b.pair.posts.size() == 1);
  REQUIRE(a.immediate(0xC000'0001) == nullptr);
  CHECK(told(a) == std::vector<std::uint32_t>{0xC000'0001, 0xC000'0003});
  REQUIRE(a.immediate(0xC000'0003) == nullptr);
  CHECK(a.pair.posts.size() + b.pair.posts.size() == 2);
}

TEST_CASE("recall: when its path is lost without an answer, another one tells it") {
  ServerBench bench;
  TestPath b{bench.session};
  {
    TestPath a{bench.session};
    CHECK(bench.session.recall());
    CHECK(told(b) == std::vector<std::uint32_t>{0xC000'0001});
    b.close();
    CHECK(told(a) == std::vector<std::uint32_t>{0xC000'0001});
    a.close();
  }
  TestPath c{bench.session};  // it forgets what was posted before the info response
  CHECK(c.immediate(0xC000'0001) == nullptr);
  CHECK(bench.session.recall());
  CHECK(told(c) == std::vector<std::uint32_t>{0xC000'0002});
}

TEST_CASE("recall: a client without memory paths is told nothing") {
  ServerBench bench{options(/*exactly_once=*/true)};
  TestPath a{bench.session};
  CHECK_FALSE(bench.session.recall());
  CHECK(a.pair.posts.empty());
  CHECK(a.immediate(0xC000'0001) == nullptr);  // unknown to this session: ignored
}

TEST_CASE("recall: an answer to nothing, or to another one, breaks the path") {
  ServerBench bench;
  TestPath a{bench.session};
  CHECK(a.immediate(0xC000'0001) != nullptr);
  CHECK(bench.session.recall());
  CHECK(a.immediate(0xC000'0002) != nullptr);
  CHECK(a.immediate(0xC000'0001) == nullptr);
  CHECK(a.immediate(0xC000'0001) != nullptr);
}

// ---- The client's path --------------------------------------------------------------------------

struct ClientBench {
  explicit ClientBench(std::uint32_t features = wire::kFeatureMemoryPaths)
      : path{{.session_name = "test", .features = features}} {
    const wire::AcceptParameters accept{
        .queue_depth = 8,
        .max_io_size = 4096,
        .max_header_size = 4096,
        .extension = {.present = true, .features = wire::kFeatureMemoryPaths}};
    REQUIRE(path.on_answer(0, wire::bytes_of(wire::encode(accept))) == nullptr);
    path.start_exchange(control);
    const std::array chunks{wire::Descriptor{0x10000, 7, 8 * accept.chunk_size()}};
    REQUIRE(path.on_message(wire::encode_info_response(chunks), std::nullopt) == nullptr);
    control.posts.clear();
    control.receives = 0;
  }
  Complaint hear(std::uint32_t immediate) { return path.on_write_with_immediate(immediate, 0); }

  FakeQueuePair control;
  ClientPath path;
};

TEST_CASE("recall: the client hears it and answers once") {
  ClientBench bench;
  CHECK_FALSE(bench.path.recalled());
  REQUIRE(bench.hear(0xC000'0005) == nullptr);
  CHECK(bench.path.recalled());
  CHECK(bench.control.receives == 1);
  CHECK(bench.hear(0xC000'0006) != nullptr);
  bench.path.acknowledge_recall();
  CHECK_FALSE(bench.path.recalled());
  bench.path.acknowledge_recall();
  REQUIRE(bench.control.posts.size() == 1);
  CHECK(bench.control.posts[0].immediate == 0xC000'0005);
}

TEST_CASE("recall: the client breaks the path of a server that may not recall, or never listens") {
  ClientBench stranger{/*features=*/0};
  CHECK(stranger.hear(0xC000'0001) != nullptr);
  ClientBench bench;
  bench.control.sent_up_to = 0;
  Complaint complaint = nullptr;
  for (unsigned i = 1; complaint == nullptr && i < 100'000; ++i) {
    complaint = bench.hear(wire::recall_immediate(i));
    bench.path.acknowledge_recall();
  }
  CHECK(complaint != nullptr);
  CHECK(bench.control.posts.size() < 10'000);
}

}  // namespace
}  // namespace rtrs::test::recall_test
