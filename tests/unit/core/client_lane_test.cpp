// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <deque>
#include <memory>
#include <string>

#include "rdma/core/client/lane.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/unit/core/fake_queue_pair.hpp"

namespace rtrs::client_lane_test {
namespace {

/// A lane with `slots` permits of a session of `depth`, from permit 2 on.
struct Bench {
  explicit Bench(std::uint16_t slots = 2, bool new_rkey = false, std::uint32_t depth = 8)
      : lane{2, slots} {
    for (std::uint32_t i = 0; i < slots; ++i) chunks.push_back({0x10000ULL * (i + 2), 70 + i});
    lane.attach(0, {.queue_pair = &queue_pair,
                    .chunks = chunks,
                    .queue_depth = depth,
                    .chunk_size = 8192,
                    .max_io_size = 4096,
                    .new_rkey = new_rkey,
                    .data_rides_with_reply = !new_rkey});
  }
  Complaint reply(std::uint32_t buffer, int error, std::uint32_t bytes = 0) {
    return lane.connection(0).on_write_with_immediate(
        encode(wire::ResponseImmediate{buffer, error}), bytes);
  }

  FakeQueuePair queue_pair;
  std::vector<wire::ChunkAddress> chunks;
  ClientLane lane;
};

struct TestRequest : Request {
  explicit TestRequest(std::string text = "m") : text_{std::move(text)} {
    message = std::as_bytes(std::span{text_});
    done = [](ClientLane&, Request& request) { ++static_cast<TestRequest&>(request).calls; };
  }
  int calls = 0;

 private:
  std::string text_;
};

TEST_CASE("a write goes to the start of its chunk: data, message, header") {
  Bench bench;
  std::vector<std::byte> data(512, std::byte{7});
  TestRequest request{"abc"};
  request.write_data = data;
  bench.lane.submit(request);
  REQUIRE(bench.queue_pair.posts.size() == 1);
  const auto& post = bench.queue_pair.posts[0];
  CHECK(post.to.address == 0x20000);
  CHECK(post.to.key == 70);
  CHECK(post.data == data);
  REQUIRE(post.header.size() == 3 + 4);
  CHECK(post.header[0] == std::byte{'a'});
  CHECK(post.header[3] == std::byte{2});  // type write
  CHECK(post.header[5] == std::byte{3});  // user length
  CHECK(post.immediate == encode(wire::RequestImmediate{2, 515}, 8));
  CHECK(bench.reply(2, 0) == nullptr);
  CHECK(request.calls == 1);
  CHECK(request.error == 0);
}

TEST_CASE("a read leaves room for its data in the chunk and tells where the answer goes") {
  Bench bench;
  std::vector<std::byte> buffer(1024);
  TestRequest request{"abcd"};
  request.is_read = true;
  request.read_data = buffer;
  bench.lane.submit(request);
  const auto& post = bench.queue_pair.posts.at(0);
  CHECK(post.to.address == 0x20000 + 1024);
  CHECK(post.data.empty());
  REQUIRE(post.header.size() == 4 + 8 + 16);
  CHECK(post.immediate == encode(wire::RequestImmediate{2, 1028}, 8));
  REQUIRE(bench.queue_pair.exposed.size() == 1);
  CHECK(bench.queue_pair.exposed.begin()->second.data() == buffer.data());
  CHECK(bench.reply(2, 0, 1024) == nullptr);
  CHECK(request.calls == 1);
  CHECK(bench.queue_pair.exposed.empty());
}

TEST_CASE("a read whose data are not where they belong is no success") {
  Bench bench;
  std::vector<std::byte> buffer(1024);
  TestRequest request;
  request.is_read = true;
  request.read_data = buffer;
  bench.lane.submit(request);
  bench.queue_pair.landed = false;
  CHECK(bench.reply(2, 0, 1024) == std::string{"a reply whose data went elsewhere"});
  CHECK(request.calls == 0);
}

TEST_CASE("an error comes back as it was sent, and gives the permit back") {
  Bench bench{1};
  TestRequest request;
  bench.lane.submit(request);
  CHECK(bench.lane.permits().in_use() == 1);
  CHECK(bench.reply(2, ENOSPC) == nullptr);
  CHECK(request.error == ENOSPC);
  CHECK(bench.lane.permits().in_use() == 0);
}

TEST_CASE("a server cannot say that a caller has given up") {
  Bench bench{1};
  TestRequest request;
  bench.lane.submit(request);
  CHECK(bench.reply(2, EINTR) == nullptr);
  CHECK(request.error == EIO);
}

TEST_CASE("requests without a permit are sent in order as permits come back") {
  Bench bench{1};
  TestRequest a, b, c;
  for (TestRequest* request : {&a, &b, &c}) bench.lane.submit(*request);
  CHECK(bench.queue_pair.posts.size() == 1);
  bench.lane.cancel(b);
  CHECK(bench.reply(2, 0) == nullptr);
  CHECK(a.calls == 1);
  CHECK(bench.queue_pair.posts.size() == 2);
  CHECK(bench.reply(2, 0) == nullptr);
  CHECK(c.calls == 1);
  CHECK(b.calls == 0);
}

TEST_CASE("a cancelled request keeps its permit until the answer, which touches nothing") {
  Bench bench{1};
  std::vector<std::byte> buffer(64);
  TestRequest request;
  request.is_read = true;
  request.read_data = buffer;
  bench.lane.submit(request);
  bench.lane.cancel(request);
  CHECK(bench.queue_pair.exposed.empty());
  CHECK(bench.lane.permits().in_use() == 1);
  TestRequest next;
  bench.lane.submit(next);
  CHECK(bench.queue_pair.posts.size() == 1);
  CHECK(bench.reply(2, 0, 64) == nullptr);
  CHECK(request.calls == 0);
  CHECK(bench.queue_pair.posts.size() == 2);
}

TEST_CASE("cancelling a write that is not out yet disowns its data") {
  Bench bench{1};
  std::vector<std::byte> data(64);
  TestRequest request;
  request.write_data = data;
  bench.queue_pair.sent_up_to = 0;
  bench.lane.submit(request);
  bench.lane.cancel(request);
  CHECK(bench.queue_pair.disowned == 1);
}

TEST_CASE("a server that answers what nobody asked loses the path") {
  Bench bench;
  TestRequest request;
  bench.lane.submit(request);
  SUBCASE("a permit that is free") { CHECK(bench.reply(3, 0) != nullptr); }
  SUBCASE("a permit of another lane") { CHECK(bench.reply(1, 0) != nullptr); }
  SUBCASE("a permit that does not exist") { CHECK(bench.reply(400'000, 0) != nullptr); }
  SUBCASE("data that was not asked for") { CHECK(bench.reply(2, 0, 512) != nullptr); }
  SUBCASE("the same twice") {
    CHECK(bench.reply(2, 0) == nullptr);
    CHECK(bench.reply(2, 0) != nullptr);
  }
  SUBCASE("before it was sent") {
    bench.queue_pair.sent_up_to = 0;
    CHECK(bench.reply(2, 0) != nullptr);
  }
  SUBCASE("by a request") {
    CHECK(bench.lane.connection(0).on_write_with_immediate(0x0028'1020, 0) != nullptr);
  }
  SUBCASE("by a message") {
    CHECK(bench.lane.connection(0).on_message({}, std::nullopt) != nullptr);
  }
}

TEST_CASE("success without the data of a read loses the path where data rides with the reply") {
  Bench bench;
  std::vector<std::byte> buffer(64);
  TestRequest request;
  request.is_read = true;
  request.read_data = buffer;
  bench.lane.submit(request);
  CHECK(bench.reply(2, 0, 0) != nullptr);
}

TEST_CASE("in new-key mode every reply brings the key of its chunk") {
  Bench bench{1, true};
  const auto rkey_reply = [&](std::uint16_t buffer, std::uint32_t key, std::uint32_t in_immediate) {
    wire::RkeyMessage message;
    message.buffer_id = buffer;
    message.key = key;
    return bench.lane.connection(0).on_message(wire::bytes_of(message),
                                               encode(wire::ResponseImmediate{in_immediate, 0}));
  };
  TestRequest request, next;
  bench.lane.submit(request);
  bench.lane.submit(next);
  CHECK(bench.queue_pair.posts.at(0).to.key == 70);
  SUBCASE("and the next request uses it") {
    CHECK(rkey_reply(2, 0x1234, 2) == nullptr);
    CHECK(request.calls == 1);
    REQUIRE(bench.queue_pair.posts.size() == 2);
    CHECK(bench.queue_pair.posts[1].to.key == 0x1234);
  }
  SUBCASE("and message and immediate must agree") { CHECK(rkey_reply(3, 1, 2) != nullptr); }
  SUBCASE("and a reply without one loses the path") { CHECK(bench.reply(2, 0) != nullptr); }
}

TEST_CASE("requests that can never be sent end at once") {
  Bench bench;
  std::vector<std::byte> large(4097);
  TestRequest too_much;
  too_much.write_data = large;
  bench.lane.submit(too_much);
  CHECK(too_much.error == EMSGSIZE);
  TestRequest too_long{std::string(wire::kMaxUserMessage + 1, 'x')};
  bench.lane.submit(too_long);
  CHECK(too_long.error == EMSGSIZE);
  CHECK(bench.queue_pair.posts.empty());
}

/// Many requests of somebody.
struct Owner {
  void submit_to(ClientLane& lane, unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      requests.emplace_back();
      requests.back().scope = &given_up;
      lane.submit(requests.back());
    }
  }
  unsigned in_flight() const {
    return static_cast<unsigned>(std::ranges::count_if(
        requests, [](const Request& r) { return r.state == Request::State::in_flight; }));
  }

  std::shared_ptr<Unresolved> given_up = std::make_shared<Unresolved>();
  std::deque<TestRequest> requests;
};

TEST_CASE("permits: those who get no answers leave some for everybody else") {
  Bench bench{64, false, 128};
  std::array<Owner, 3> hang;
  for (Owner& owner : hang) owner.submit_to(bench.lane, 100);
  CHECK(hang[0].in_flight() == 56);  // seven eighths
  CHECK(hang[1].in_flight() == 4);   // half of the rest
  CHECK(hang[2].in_flight() == 2);
  Owner works;
  works.submit_to(bench.lane, 50);
  REQUIRE(works.in_flight() == 1);
  for (unsigned i = 0; i < 50; ++i) {
    REQUIRE(works.requests[i].state == Request::State::in_flight);
    REQUIRE(bench.reply(2U + works.requests[i].slot, 0) == nullptr);
  }
  CHECK(works.in_flight() == 0);
}

TEST_CASE("permits: what was given up counts as its caller's until the server answers") {
  Bench bench{64, false, 128};
  Owner hangs, works;
  hangs.submit_to(bench.lane, 60);
  for (TestRequest& request : hangs.requests) bench.lane.cancel(request);
  hangs.submit_to(bench.lane, 1);
  CHECK(hangs.in_flight() == 0);
  works.submit_to(bench.lane, 4);
  CHECK(works.in_flight() == 4);
}

TEST_CASE("permits: who is alone and gets answers is not held up") {
  Bench bench{64, false, 128};
  Owner owner;
  owner.submit_to(bench.lane, 200);
  for (TestRequest& request : owner.requests) {
    REQUIRE(request.state == Request::State::in_flight);
    REQUIRE(bench.reply(2U + request.slot, 0) == nullptr);
  }
  CHECK(bench.lane.permits().in_use() == 0);
}

TEST_CASE("when the path is gone everything ends, and so does what comes later") {
  Bench bench{1};
  TestRequest in_flight, waiting, late;
  bench.lane.submit(in_flight);
  bench.lane.submit(waiting);
  bench.lane.shut_down(EIO);
  CHECK(in_flight.error == EIO);
  CHECK(waiting.error == EIO);
  bench.lane.submit(late);
  CHECK(late.error == EIO);
  CHECK(bench.lane.permits().in_use() == 0);
  CHECK(in_flight.calls + waiting.calls + late.calls == 3);
}

TEST_CASE("a request may be given up by the end of another one while the path goes down") {
  Bench bench{2};
  TestRequest first, second;
  std::vector<std::byte> buffer(64);
  first.is_read = second.is_read = true;
  first.read_data = second.read_data = buffer;
  bench.lane.submit(first);
  bench.lane.submit(second);
  static TestRequest* other;
  for (TestRequest* request : {&first, &second}) {
    request->done = [](ClientLane& lane, Request& ended) {
      ++static_cast<TestRequest&>(ended).calls;
      lane.cancel(*other);
    };
  }
  SUBCASE("the first") { other = &first; }
  SUBCASE("the second") { other = &second; }
  bench.lane.shut_down(EIO);
  CHECK(first.calls + second.calls >= 1);
  CHECK(first.state == Request::State::idle);
  CHECK(second.state == Request::State::idle);
  CHECK(bench.lane.permits().in_use() == 0);
}

TEST_CASE("heartbeats and unknown immediates are none of a lane's business") {
  Bench bench;
  const auto before = bench.queue_pair.receives;
  CHECK(bench.lane.connection(0).on_write_with_immediate(wire::kHeartbeat, 0) == nullptr);
  CHECK(bench.lane.connection(0).on_write_with_immediate(0xF000'0000, 0) == nullptr);
  CHECK(bench.queue_pair.receives == before + 2);
}

}  // namespace
}  // namespace rtrs::client_lane_test
