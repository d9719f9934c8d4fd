// SPDX-License-Identifier: BSD-3-Clause
// Data that are received where the handler expects them, and answers that are sent from where they
// lie.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/unit/core/server_bench.hpp"

namespace rtrs::server_detour_test {
namespace {

using test::Bench;
using test::TestPath;

/// A request of TestPath::write(): 512 bytes, a message of 4, the generation.
constexpr std::uint32_t kData = 512;
constexpr std::uint32_t kMessage = 4 + sizeof(wire::WriteTrailer);
constexpr std::uint32_t kFrame = kData + kMessage + sizeof(wire::WriteHeader);

std::uint32_t immediate(std::uint32_t permit, std::uint32_t header = kData + kMessage) {
  return encode(wire::RequestImmediate{permit, header}, 4);
}

/// The request of permit 0 executes, and has said where the data of the next one belong.
struct Expecting {
  Expecting() {
    REQUIRE(path.write(0, 1) == nullptr);
    bench.handler.running.front()->expect_next(memory);
  }
  ~Expecting() {
    while (!bench.handler.running.empty()) bench.handler.finish_oldest();
    if (!path.closed()) path.close();
  }
  MutableBytes detour(std::uint64_t address, std::uint32_t length, std::uint32_t value) {
    return path.handler->detour(address, length, value);
  }
  /// The next request begins to arrive, in the permit's chunk.
  MutableBytes arrive(std::uint32_t permit) {
    return detour(std::uint64_t{permit} * test::kChunk, kFrame, immediate(permit));
  }
  ServerRequest& newest() { return *bench.handler.running.back(); }

  Bench bench;
  TestPath path{bench.session};
  std::vector<std::byte> memory = std::vector<std::byte>(kData);
};

TEST_CASE("the data of an expected request are the handler's from the beginning") {
  Expecting e;
  const MutableBytes place = e.arrive(2);
  CHECK(place.data() == e.memory.data());
  CHECK(place.size() == kData);
  REQUIRE(e.path.write(2, 1) == nullptr);
  CHECK(e.newest().data.data() == e.memory.data());
  CHECK(e.newest().data.size() == kData);
  CHECK(e.arrive(3).empty());  // it was for one request only
}

TEST_CASE("a request that looks otherwise goes into its chunk") {
  Expecting e;
  CHECK(e.detour(test::kChunk + 1, kFrame, immediate(1)).empty());
  CHECK(e.detour(2 * test::kChunk, kFrame, immediate(1)).empty());
  CHECK(e.detour(test::kChunk, kFrame + 1, immediate(1)).empty());
  CHECK(e.detour(test::kChunk, kFrame + 4, immediate(1, kData + kMessage + 4)).empty());
  CHECK(e.detour(4 * test::kChunk, kFrame, immediate(4)).empty());
  CHECK(e.detour(test::kChunk, kFrame, wire::kHeartbeat).empty());
  REQUIRE(e.path.write(1, 1) == nullptr);
  CHECK(e.newest().data.data() == e.path.memory.data() + test::kChunk);
}

TEST_CASE("a request that turns out to be another has its data and its message in its chunk") {
  Expecting e;
  REQUIRE(!e.arrive(1).empty());
  std::ranges::fill(e.memory, std::byte{7});
  // Fewer data, and a longer message in front of the same header.
  const wire::WriteHeader header{.type = 2, .user_length = 20 + kMessage};
  std::byte* const chunk = e.path.memory.data() + test::kChunk;
  const wire::WriteTrailer trailer{.generation = 1};
  std::memcpy(chunk + kData + 4, &trailer, sizeof(trailer));
  std::memcpy(chunk + kData + kMessage, &header, sizeof(header));
  REQUIRE(e.path.immediate(immediate(1)) == nullptr);
  REQUIRE(e.newest().data.size() == kData - 20);
  CHECK(e.newest().data.data() == chunk);
  CHECK(std::ranges::count(e.newest().data, std::byte{7}) == kData - 20);
  CHECK(std::ranges::count(e.newest().message.first(20), std::byte{7}) == 20);
}

TEST_CASE("memory that is taken back in the middle is the handler's at once") {
  Expecting e;
  REQUIRE(!e.arrive(1).empty());
  e.bench.session.let_go(ConstBytes{e.memory}.subspan(kData - 1));
  CHECK(e.path.pair.detours_ended == 1);
  REQUIRE(e.path.write(1, 1) == nullptr);
  CHECK(e.newest().data.data() == e.path.memory.data() + test::kChunk);
  e.bench.session.let_go(e.memory);
  CHECK(e.path.pair.detours_ended == 1);
}

TEST_CASE("... and other memory is left alone") {
  Expecting e;
  const std::vector<std::byte> other(kData);
  REQUIRE(!e.arrive(1).empty());
  e.bench.session.let_go(other);
  CHECK(e.path.pair.detours_ended == 0);
}

TEST_CASE("a path that closes has nothing of the handler any more") {
  Expecting e;
  REQUIRE(!e.arrive(1).empty());
  e.path.close();
  CHECK(e.path.pair.detours_ended == 1);
}

TEST_CASE("the chunk of a request whose data are elsewhere is given back with its path") {
  Expecting e;
  REQUIRE(!e.arrive(1).empty());
  REQUIRE(e.path.write(1, 1) == nullptr);
  e.path.close();
  CHECK(e.path.kept(1) == 0);
  CHECK(e.path.kept(0) == kData);  // the first request executes there
}

TEST_CASE("an answer is sent from where it lies, until the handler takes that back") {
  Bench bench;
  TestPath path{bench.session};
  path.pair.anywhere = true;
  const std::vector<std::byte> answer(64, std::byte{9});
  REQUIRE(path.read(0) == nullptr);
  ServerRequest& request = *bench.handler.running.front();
  CHECK(request.may_send_from_anywhere());
  request.source = answer.data();
  bench.handler.finish_oldest();
  REQUIRE(path.pair.posts.size() == 1);
  CHECK(path.pair.posts[0].data == answer);
  bench.session.let_go(answer);
  CHECK(path.pair.disowned == 1);
  REQUIRE(path.read(0) == nullptr);
  CHECK(bench.handler.running.front()->source == nullptr);
  bench.handler.finish_oldest();
  path.close();
}

}  // namespace
}  // namespace rtrs::server_detour_test
