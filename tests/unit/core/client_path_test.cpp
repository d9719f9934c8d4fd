// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <array>
#include <cerrno>
#include <optional>

#include "rdma/core/client/path.hpp"
#include "rdma/wire/immediate.hpp"
#include "tests/unit/core/fake_queue_pair.hpp"

namespace rtrs::client_path_test {
namespace {

using namespace std::chrono_literals;
using Verdict = Heartbeat::Verdict;

/// A path that is connected over a fake connection 0.
struct ConnectedPath {
  static ClientPathOptions options() {
    ClientPathOptions options;
    options.session_name = "test";
    options.heartbeat_interval = 100ms;
    options.heartbeat_misses = 1;
    options.features = wire::kFeatureExactlyOnce;
    return options;
  }

  explicit ConnectedPath(bool new_keys = false, std::uint32_t features = 0) {
    wire::AcceptParameters accept{.queue_depth = 8,
                                  .max_io_size = 4096,
                                  .max_header_size = 4096,
                                  .new_rkey = new_keys,
                                  .extension = {}};
    accept.extension.present = features != 0;
    accept.extension.features = features;
    REQUIRE(path.on_answer(0, wire::bytes_of(wire::encode(accept))) == nullptr);
    path.start_exchange(control);
    const std::array chunks{wire::Descriptor{0x10000, 7, 8 * accept.chunk_size()}};
    REQUIRE(path.on_message(wire::encode_info_response(chunks), std::nullopt) == nullptr);
    path.pulse().start(Instant{});
  }

  FakeQueuePair control;
  ClientPath path{options()};
};

TEST_CASE("client path: what was heard before a tick does not count for the next one again") {
  ConnectedPath connected;
  ClientPath& path = connected.path;
  // Both at once, then silence.
  REQUIRE(path.on_write_with_immediate(wire::kHeartbeatAck, 0) == nullptr);
  CHECK(path.on_tick(Instant{100ms}, /*traffic=*/true) == Verdict::send);
  CHECK(path.on_tick(Instant{200ms}, false) == Verdict::nothing);
  CHECK(path.on_tick(Instant{300ms}, false) == Verdict::dead);
}

TEST_CASE("client path: a reply that brings a new key is a sign of life") {
  ConnectedPath connected{/*new_keys=*/true};
  ClientPath& path = connected.path;
  ClientLane lane{0, path.slots_per_lane()[0]};
  path.set_control_handler(&lane.connection(0));
  path.attach(lane, 0, 0, connected.control);
  const std::array<std::byte, 8> message{};
  Request request;
  request.message = message;
  lane.submit(request);
  CHECK(path.on_tick(Instant{100ms}, false) == Verdict::send);
  CHECK(path.on_tick(Instant{200ms}, false) == Verdict::nothing);

  wire::RkeyMessage key;
  key.buffer_id = request.slot;
  key.key = 9;
  const auto reply = wire::encode(wire::ResponseImmediate{request.slot, 0});
  REQUIRE(path.on_message(wire::bytes_of(key), reply) == nullptr);
  CHECK(path.on_tick(Instant{300ms}, false) == Verdict::send);
}

TEST_CASE("client path: traffic on a lane alone keeps the server alive") {
  ConnectedPath connected;
  for (int i = 1; i <= 20; ++i) {
    CHECK(connected.path.on_tick(Instant{i * 100ms}, /*traffic=*/true) == Verdict::send);
  }
}

TEST_CASE("client path: traffic on a lane alone does not hide that connection 0 says nothing") {
  ConnectedPath connected{false, wire::kFeatureExactlyOnce};
  ClientPath& path = connected.path;
  for (int i = 1; i <= 3; ++i) {
    CHECK(path.on_tick(Instant{i * 100ms}, /*traffic=*/true) == Verdict::send);
  }
  CHECK(path.pulse().control_silence() == 3);
  REQUIRE(path.on_write_with_immediate(wire::kHeartbeatAck, 0) == nullptr);
  path.on_tick(Instant{400ms}, true);
  CHECK(path.pulse().control_silence() == 0);
}

TEST_CASE("client path: latency is that of one heartbeat, however many are on their way") {
  ConnectedPath connected;
  ClientPath& path = connected.path;
  const auto answered = [&](Instant now) {
    REQUIRE(path.on_write_with_immediate(wire::kHeartbeatAck, 0) == nullptr);
    return path.pulse().measure(now);
  };
  for (int i = 1; i <= 3; ++i) path.on_tick(Instant{i * 100ms}, /*traffic=*/true);
  CHECK(answered(Instant{350ms}));
  CHECK(path.pulse().latency() == 250ms);
  path.on_tick(Instant{400ms}, true);
  CHECK_FALSE(answered(Instant{450ms}));
  CHECK_FALSE(answered(Instant{550ms}));
  CHECK(answered(Instant{650ms}));
  CHECK(path.pulse().latency() == 250ms);
}

TEST_CASE("client path: a server without the extension answers heartbeats when it likes") {
  ConnectedPath connected;
  for (int i = 1; i <= 3; ++i) connected.path.on_tick(Instant{i * 100ms}, /*traffic=*/true);
  CHECK(connected.path.pulse().control_silence() == 0);
}

TEST_CASE("client path: a server that has no room says so in place of its chunks") {
  ClientPath path{ConnectedPath::options()};
  const wire::AcceptParameters accept{
      .queue_depth = 8, .max_io_size = 4096, .max_header_size = 4096, .extension = {}};
  REQUIRE(path.on_answer(0, wire::bytes_of(wire::encode(accept))) == nullptr);
  FakeQueuePair control;
  path.start_exchange(control);
  const auto refusal = wire::encode_info_refusal(ENOMEM);
  CHECK(path.on_message(wire::bytes_of(refusal), std::nullopt) != nullptr);
  CHECK(path.refusal() == ENOMEM);
  CHECK(path.state() == ClientPathState::exchanging);
}

TEST_CASE(
    "client path: of more permits than the lanes share, the first are used, by the new layout") {
  ClientPathOptions options = ConnectedPath::options();
  options.permits = 8;
  options.io_connections = 2;
  ClientPath path{options};
  const wire::AcceptParameters accept{
      .queue_depth = 40, .max_io_size = 4096, .max_header_size = 4096, .extension = {}};
  REQUIRE(path.on_answer(0, wire::bytes_of(wire::encode(accept))) == nullptr);
  CHECK(path.slots_per_lane() == std::vector<std::uint16_t>{1, 4, 3});
  FakeQueuePair control;
  path.start_exchange(control);
  const std::array chunks{wire::Descriptor{0x10000, 7, 40 * accept.chunk_size()}};
  REQUIRE(path.on_message(wire::encode_info_response(chunks), std::nullopt) == nullptr);

  ClientLane lane{5, 3};
  FakeQueuePair pair;
  path.attach(lane, 0, 2, pair);
  const std::array<std::byte, 8> message{};
  Request request;
  request.message = message;
  lane.submit(request);
  REQUIRE(pair.posts.size() == 1);
  const auto where = wire::decode_request(pair.posts[0].immediate, 40);
  CHECK(where.buffer_id == 5U + request.slot);
  CHECK(pair.posts[0].to.address == 0x10000 + where.buffer_id * accept.chunk_size());
}

}  // namespace
}  // namespace rtrs::client_path_test
