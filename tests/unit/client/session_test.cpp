// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/session.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <thread>

#include "tests/unit/client/session_world.hpp"

namespace rnbd::test::session_test {
namespace {

TEST_CASE("a session starts with the exchange of versions") {
  World world;
  CHECK(world.client->server.count(MessageType::session_info) == 1);
}

TEST_CASE("a server that does not know RNBD is told apart") {
  auto client = std::make_unique<FakeClient>();
  SUBCASE("by its error") {
    client->server.fail = [](const Arrival&) { return EINVAL; };
    auto started = start_session(std::move(client));
    REQUIRE_FALSE(started);
    CHECK(started.error().error == EINVAL);
  }
}

TEST_CASE("a request that is too large is told with what limits it") {
  const std::string text = describe_error(EMSGSIZE);
  CHECK(text.find("more data than the session takes") != std::string::npos);
  CHECK(text.find("--max-io-size") != std::string::npos);
}

TEST_CASE("a device opened twice in one session is one mapping, closed by its last user") {
  World world;
  auto first = world.session->open("disk0", {}, {});
  auto second = world.session->open("disk0", {.access = AccessMode::read_only}, {});
  REQUIRE(first);
  REQUIRE(second);
  CHECK_FALSE((*first)->read_only());
  CHECK((*second)->read_only());
  CHECK(world.client->server.count(MessageType::open) == 1);
  first->reset();
  CHECK(world.client->server.count(MessageType::close) == 0);
  second->reset();
  CHECK(world.client->server.count(MessageType::close) == 1);
  CHECK(world.session->open("disk0", {}, {}).has_value());
  CHECK(world.client->server.count(MessageType::open) == 2);
}

TEST_CASE("a device that is another disk than it must be is closed again, with both UUIDs told") {
  World world;
  world.client->server.device_info.export_uuid = {1};
  OpenOptions options;
  options.uuid = {2};
  Device other;
  SUBCASE("at once") {}
  SUBCASE("also when somebody else has it open") { other = world.open("disk0"); }
  const auto wrong = world.session->open("disk0", options, {});
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().error == ESTALE);
  CHECK(wrong.error().text.find("01000000-") != std::string::npos);
  CHECK(wrong.error().text.find("02000000-") != std::string::npos);
  CHECK(world.count(MessageType::close) == (other ? 0 : 1));
  options.uuid = {1};
  const auto right = world.session->open("disk0", options, {});
  REQUIRE(right);
  CHECK(world.session->devices().front().uuid.starts_with("01000000-"));
}

TEST_CASE("a disk whose UUID nobody knows is none that must have one") {
  World world;
  world.client->server.device_info.export_uuid = {};
  OpenOptions options;
  options.uuid = {2};
  const auto unknown = world.session->open("disk0", options, {});
  REQUIRE_FALSE(unknown);
  CHECK(unknown.error().error == ESTALE);
  CHECK(world.count(MessageType::close) == 1);
}

TEST_CASE("all spellings of a path are one device to a server without the extension") {
  World world{{.features = 0}};
  std::vector<Device> devices;
  for (const char* name : {"dev/ram0", "/dev/ram0", "dev//ram0", "//dev/./ram0", "./dev/ram0"}) {
    devices.push_back(world.open(name));
  }
  CHECK(world.count(MessageType::open) == 1);
  CHECK(world.client->server.open.contains("dev/ram0"));
  devices.push_back(world.open("dev/ram1"));
  devices.push_back(world.open("dev/.ram0"));
  CHECK(world.count(MessageType::open) == 3);
}

TEST_CASE("a name without a component is left to the server, which has its own word for it") {
  World world{{.features = 0}};
  const Device root = world.open("//");
  CHECK(world.client->server.open.contains("//"));
}

TEST_CASE("to a server with the extension names are names, whatever slashes they have") {
  World world;
  const Device one = world.open("dev/ram0");
  const Device other = world.open("/dev//ram0");
  CHECK(world.client->server.open.contains("dev/ram0"));
  CHECK(world.client->server.open.contains("/dev//ram0"));
}

TEST_CASE("a device that is open read-only here cannot be opened for writing beside it") {
  World world;
  auto reader = world.session->open("disk0", {.access = AccessMode::read_only}, {});
  auto writer = world.session->open("disk0", {}, {});
  REQUIRE_FALSE(writer);
  CHECK(writer.error().error == EBUSY);
  CHECK(world.session->open("disk1", {}, {}).has_value());
}

TEST_CASE("an export that is read-only is not called busy when it is open already") {
  OpenOptions reader{.access = AccessMode::read_only};
  World world;
  SUBCASE("the server says so") { world.client->server.device_info.flags = wire::kDeviceReadOnly; }
  SUBCASE("the server has refused to open it for writing") { reader.export_read_only = true; }
  auto first = world.session->open("disk0", reader, {});
  auto writer = world.session->open("disk0", {}, {});
  REQUIRE_FALSE(writer);
  CHECK(writer.error().error == EROFS);
  CHECK(world.session->open("disk0", reader, {}).has_value());
}

TEST_CASE("the server's refusal keeps its errno and names the device") {
  World world;
  world.client->server.fail = [](const Arrival&) { return ENOENT; };
  auto opened = world.session->open("disk9", {}, {});
  REQUIRE_FALSE(opened);
  CHECK(opened.error().error == ENOENT);
  CHECK(opened.error().text.find("'disk9'") != std::string::npos);
  world.client->server.fail = nullptr;
  CHECK(world.session->open("disk9", {}, {}).has_value());
}

TEST_CASE("a name that no device can have is not sent") {
  World world;
  for (const std::string& name : {std::string{}, std::string(255, 'x'), std::string{"a\nb"}}) {
    auto opened = world.session->open(name, {}, {});
    REQUIRE_FALSE(opened);
    CHECK(opened.error().error == EINVAL);
  }
  CHECK(world.client->server.count(MessageType::open) == 0);
}

TEST_CASE("a device whose shape makes no sense is closed again") {
  World world;
  world.client->server.open_response.logical_block_size = 100;
  auto opened = world.session->open("disk0", {}, {});
  REQUIRE_FALSE(opened);
  CHECK(opened.error().error == EPROTO);
  CHECK(world.client->server.count(MessageType::close) == 1);
}

TEST_CASE("without the extension neither device info nor a list is asked for") {
  World world{{.features = 0}};
  auto opened = world.session->open("disk0", {}, {});
  REQUIRE(opened);
  CHECK_FALSE((*opened)->geometry().own_peer);
  auto exports = world.session->directory().exports({});
  REQUIRE_FALSE(exports);
  CHECK(exports.error().error == EOPNOTSUPP);
  CHECK(world.client->server.count(MessageType::device_info) == 0);
  CHECK(world.client->server.count(MessageType::list_exports) == 0);
}

/// A server with this directory.
void serve(World& world, std::vector<wire::DirectoryEntry> entries) {
  world.client->server.other = [entries = std::move(entries)](const Arrival& arrival,
                                                              std::vector<std::byte>& reply) {
    const auto question = wire::decode_directory(arrival.message);
    if (!question) return EINVAL;
    const auto page = wire::encode_directory_page(entries, question->first, reply.size());
    std::copy(page.begin(), page.end(), reply.begin());
    return 0;
  };
}

wire::DirectoryEntry address(const std::string& text) {
  wire::DirectoryEntry entry;
  entry.name = text;
  entry.kind = wire::DirectoryKind::path;
  return entry;
}

wire::DirectoryEntry referral(const std::string& name, const std::string& uri) {
  wire::DirectoryEntry entry;
  entry.name = name;
  entry.description = uri;
  entry.kind = wire::DirectoryKind::referral;
  return entry;
}

TEST_CASE("addresses that a server advertises are checked, and no more than a session can have") {
  World world;
  std::vector<wire::DirectoryEntry> entries{{.name = "disk0", .description = ""},
                                            address("tcp:10.0.0.1:1"),
                                            address("tcp:10.0.0.1:1"),
                                            address("tcp:/etc/passwd"),
                                            address("unix:/x")};
  for (int i = 2; i < 20; ++i) entries.push_back(address("tcp:10.0.0.1:" + std::to_string(i)));
  serve(world, entries);
  const auto paths = world.session->directory().advertised({});
  REQUIRE(paths);
  REQUIRE(paths->size() == 8);
  CHECK(paths->front() == rtrs::PathAddress{rtrs::TransportKind::tcp, "", "10.0.0.1", 1});
  CHECK(paths->back().port == 8);
  CHECK(world.count(MessageType::directory) == 1);
}

TEST_CASE("a server that does not know of addresses has none, and it is asked at most once") {
  FakeOptions options;
  bool asked = true;
  SUBCASE("one without the extension is not asked") { options.features = 0, asked = false; }
  SUBCASE("one of an older version refuses") {}
  World world{options};
  world.client->server.fail = [](const Arrival&) { return EINVAL; };
  const auto paths = world.session->directory().advertised({});
  REQUIRE(paths);
  CHECK(paths->empty());
  CHECK(world.count(MessageType::directory) == (asked ? 1 : 0));
}

TEST_CASE("who asks for addresses may leave, and nonsense is told") {
  World world;
  SUBCASE("left") {
    world.client->stalled = [](const Arrival&) { return true; };
    const auto paths = world.session->directory().advertised({&leave_now, nullptr});
    REQUIRE_FALSE(paths);
    CHECK(paths.error().error == EINTR);
  }
  SUBCASE("nonsense") {
    world.client->server.other = [](const Arrival&, std::vector<std::byte>& reply) {
      std::fill(reply.begin(), reply.end(), std::byte{0xFF});
      return 0;
    };
    const auto paths = world.session->directory().advertised({});
    REQUIRE_FALSE(paths);
    CHECK(paths.error().error == EPROTO);
  }
}

TEST_CASE("a referral is told by its name, and what cannot be one is left out") {
  World world;
  serve(world, {{.name = "disk0", .description = "rnbd+tcp://a/disk0"},
                referral("vm7", "rnbds+tcp://store2/vm7"),
                referral("vm8", "rnbds+tcp://store2/vm8?tls-certificates=/root")});
  CHECK(world.session->directory().referral("vm7", {}) == "rnbds+tcp://store2/vm7");
  CHECK(world.session->directory().referral("vm8", {}) == "");
  CHECK(world.session->directory().referral("disk0", {}) == "");
  const auto all = world.session->directory().entries({});
  REQUIRE(all);
  CHECK(all->size() == 2);
}

TEST_CASE("a list of exports longer than one answer is fetched page by page") {
  World world{{.max_io_size = 4096}};
  for (int i = 0; i < 1000; ++i) {
    world.client->server.exports.push_back({"export-" + std::to_string(i), "about it"});
  }
  auto exports = world.session->directory().exports({});
  REQUIRE(exports);
  CHECK(*exports == world.client->server.exports);
  CHECK(world.client->server.count(MessageType::list_exports) > 5);
}

TEST_CASE("a list of exports without end is given up") {
  World world;
  world.client->server.exports.assign(100'001, {"export", ""});
  const auto exports = world.session->directory().exports({});
  REQUIRE_FALSE(exports);
  CHECK(exports.error().error == EOVERFLOW);
  CHECK(world.client->server.count(MessageType::list_exports) == 1);
}

TEST_CASE("a list of exports with endless descriptions is given up before it fills the memory") {
  World world;
  world.client->server.exports.assign(1000, {"export", std::string(60'000, 'x')});
  const auto exports = world.session->directory().exports({});
  REQUIRE_FALSE(exports);
  CHECK(exports.error().error == EOVERFLOW);
  CHECK(world.client->server.count(MessageType::list_exports) < 300);
}

TEST_CASE("an open that waits for a silent server ends when its caller is asked to leave") {
  World world;
  world.client->stalled = [](const Arrival&) { return true; };
  auto opened = world.session->open("disk0", {}, {&leave_now, nullptr});
  REQUIRE_FALSE(opened);
  CHECK(opened.error().error == EINTR);
  world.client->stalled = nullptr;
  CHECK(world.session->open("disk0", {}, {}).has_value());
}

TEST_CASE("an OPEN that was given up leaves nothing open") {
  World world;
  MessageType type = MessageType::open;
  SUBCASE("before its answer") { type = MessageType::open; }
  SUBCASE("before that of the device info") { type = MessageType::device_info; }
  world.client->stalled = [type](const Arrival& arrival) { return arrival.type() == type; };
  world.client->while_stalled = [&] { world.client->connected = false; };
  auto opened = world.session->open("disk0", {}, {&leave_now, nullptr});
  REQUIRE_FALSE(opened);
  CHECK(opened.error().error == EINTR);
  world.client->stalled = nullptr;
  world.client->server.answer_all();
  CHECK(world.client->come_back() == 1);
  CHECK(world.client->server.open.empty());
}

TEST_CASE("OPENs are numbered, and a CLOSE says which of them nobody waits for any more") {
  World world;
  std::vector<std::array<std::uint32_t, 3>> orders;
  world.client->after_answer = [&](const Arrival& arrival) {
    const auto size = arrival.type() == MessageType::open    ? sizeof(wire::Open)
                      : arrival.type() == MessageType::close ? sizeof(wire::Close)
                                                             : arrival.message.size();
    if (size == arrival.message.size()) return;
    const auto order = wire::order_of(arrival.message, size);
    const auto type = static_cast<std::uint32_t>(arrival.type());
    orders.push_back({type, order.number, order.settled});
  };
  auto a = *world.session->open("a", {}, {});
  auto b = *world.session->open("b", {}, {});
  a.reset();
  CHECK(orders == std::vector<std::array<std::uint32_t, 3>>{{2, 1, 1}, {2, 2, 2}, {5, 1, 3}});
}

TEST_CASE("two who open the same device at once share one mapping") {
  World world;
  std::vector<std::thread> threads;
  std::array<std::unique_ptr<RemoteDevice>, 8> devices;
  for (auto& device : devices) {
    threads.emplace_back([&] { device = std::move(*world.session->open("disk0", {}, {})); });
  }
  for (auto& thread : threads) thread.join();
  CHECK(world.client->server.count(MessageType::open) == 1);
  for (auto& device : devices) device.reset();
  CHECK(world.client->server.count(MessageType::close) == 1);
}

TEST_CASE("a dead session answers EIO and says why") {
  World world;
  auto device = world.session->open("disk0", {}, {});
  REQUIRE(device);
  world.client->cut();
  std::array<std::byte, 512> block{};
  CHECK((*device)->read(0, block, {}) == EIO);
  CHECK((*device)->flush({}) == EIO);
  auto again = world.session->open("disk1", {}, {});
  REQUIRE_FALSE(again);
  CHECK(again.error().error == EIO);
  CHECK(again.error().text.find("cut by the test") != std::string::npos);
  device->reset();  // does not wait for an answer to CLOSE
}

}  // namespace
}  // namespace rnbd::test::session_test
