// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/reopen.hpp"

#include <doctest/doctest.h>

#include "bridge/client/device_handle.hpp"
#include "tests/unit/client/fake_server.hpp"

namespace reopen_test {

using rnbd::DeviceGeometry;
using rnbd::ReopenDevice;
using rnbd::ReopenOperation;
using rnbd::test::Arrival;
using rnbd::test::FakeOptions;
using rnbd::test::FakeServer;
using rnbd::wire::AccessMode;
using rnbd::wire::MessageType;

namespace {

rtrs::SessionLimits limits_of(const FakeServer& server) {
  return {server.options.max_io_size, server.options.slots, server.options.features};
}

/// A device as the server shows it now.
ReopenDevice device_at(const FakeServer& server, const std::string& name) {
  ReopenDevice device{.name = name, .options = {}, .expected = {}};
  const bool own = server.options.features != 0;
  device.expected = *rnbd::make_geometry(server.open_response, own ? &server.device_info : nullptr,
                                         limits_of(server), {});
  return device;
}

struct Outcome {
  int error;
  std::string complaint;
  std::vector<std::uint32_t> ids;
  std::vector<std::string> losses;  ///< "" = it is not lost
  std::vector<bool> remembered;
};

Outcome reopen(FakeServer& server, std::vector<ReopenDevice> devices, bool any_server = false) {
  rtrs::SessionLimits limits = limits_of(server);
  limits.any_server = any_server;
  ReopenOperation operation{std::move(devices), limits};
  operation.start(server.lane);
  server.answer_all();
  REQUIRE(operation.finished());
  Outcome outcome{operation.error(), operation.complaint(), {}, {}, {}};
  for (const rnbd::ReopenedDevice& device : operation.reopened()) {
    outcome.ids.push_back(device.id);
    outcome.losses.push_back(device.loss);
    outcome.remembered.push_back(device.remembered);
  }
  return outcome;
}

bool mentions(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

}  // namespace

TEST_CASE("reopen: a session without devices is greeted only") {
  FakeServer server;
  CHECK(reopen(server, {}).error == 0);
  CHECK(server.seen == std::map<MessageType, std::uint64_t>{{MessageType::session_info, 1}});
}

TEST_CASE("reopen: every device is opened in its mode and has a new id, in order") {
  FakeServer server;
  server.next_id = 20;
  std::vector<AccessMode> modes;
  server.fail = [&](const Arrival& arrival) {
    if (arrival.type() == MessageType::open) {
      modes.push_back(rnbd::wire::decode_open(arrival.message)->mode);
    }
    return 0;
  };
  std::vector<ReopenDevice> devices(3, device_at(server, "a"));
  devices[1].name = "b";
  devices[1].options.access = AccessMode::read_only;
  devices[2].name = "c";
  devices[2].options.access = AccessMode::migration;
  const Outcome outcome = reopen(server, devices);
  CHECK(outcome.error == 0);
  CHECK(outcome.complaint.empty());
  CHECK(outcome.ids == std::vector<std::uint32_t>{20, 21, 22});
  CHECK(outcome.losses == std::vector<std::string>(3));
  CHECK(modes == std::vector{AccessMode::read_write, AccessMode::read_only, AccessMode::migration});
  CHECK(server.count(MessageType::device_info) == 3);
}

TEST_CASE("reopen: a server without the extension is not asked for more") {
  FakeServer server{{.features = 0}};
  CHECK(reopen(server, {device_at(server, "a")}).error == 0);
  CHECK(server.count(MessageType::device_info) == 0);
}

TEST_CASE("reopen: a device with any other value is lost, and the value is named") {
  struct Difference {
    const char* what;
    const char* word;  ///< in the complaint
    void (*make)(FakeServer&, ReopenDevice&);
  };
  const Difference differences[] = {
      {"size", "its size was 1048576 and is 1048575",
       [](FakeServer& server, ReopenDevice&) {
         server.device_info.size = server.device_info.size - 1;
       }},
      {"sectors", "whole sectors",
       [](FakeServer&, ReopenDevice& device) { device.expected.padded_size += 512; }},
      {"logical block", "logical block size was 512 and is 1024",
       [](FakeServer& server, ReopenDevice&) { server.open_response.logical_block_size = 1024; }},
      {"physical block", "physical block size",
       [](FakeServer& server, ReopenDevice&) { server.open_response.physical_block_size = 8192; }},
      {"identity", "export UUID",
       [](FakeServer& server, ReopenDevice&) { server.device_info.export_uuid = {2}; }},
      {"read-only now", "read-only now",
       [](FakeServer& server, ReopenDevice&) {
         server.device_info.flags = server.device_info.flags | rnbd::wire::kDeviceReadOnly;
       }},
      {"read-only before", "read-only before",
       [](FakeServer&, ReopenDevice& device) { device.expected.read_only = true; }},
      {"largest request", "largest request",
       [](FakeServer&, ReopenDevice& device) { device.expected.max_io *= 2; }},
      {"largest discard", "largest discard",
       [](FakeServer& server, ReopenDevice&) { server.open_response.max_discard_sectors = 0; }},
      {"largest zeroing", "largest zeroing",
       [](FakeServer& server, ReopenDevice&) {
         server.open_response.max_write_zeroes_sectors = 1;
       }},
      {"what a flush covers", "all connections",
       [](FakeServer& server, ReopenDevice&) { server.device_info.flags = 0; }},
      {"the extension", "the extension",
       [](FakeServer&, ReopenDevice& device) { device.expected.own_peer = false; }},
      {"a shape that no device can have", "logical block size of 100",
       [](FakeServer& server, ReopenDevice&) { server.open_response.logical_block_size = 100; }},
  };
  for (const auto& difference : differences) {
    FakeServer server;
    server.device_info.export_uuid = {1};
    ReopenDevice device = device_at(server, "disk0");
    difference.make(server, device);
    const Outcome outcome = reopen(server, {device});
    CAPTURE(difference.what);
    CHECK(outcome.error == 0);
    CHECK(outcome.ids.at(0) == server.open.at("disk0"));
    CAPTURE(outcome.losses.at(0));
    CHECK(mentions(outcome.losses.at(0), difference.word));
    CHECK(mentions(outcome.losses.at(0), "'disk0'"));
  }
}

TEST_CASE("reopen: what has grown is the same device only if the same server had it all the time") {
  FakeServer server;
  server.device_info.export_uuid = {1};
  server.device_info.server_life = 7;
  server.device_info.writer_serial = 0x7'0000'0004;
  ReopenDevice device = device_at(server, "disk0");
  server.open_response.sectors = server.open_response.sectors + 8;
  server.device_info.size = server.device_info.size + 4096;
  bool lost = true;
  SUBCASE("it had") { lost = false; }
  SUBCASE("another process") { server.device_info.server_life = 9; }
  SUBCASE("nobody knows") {
    server.device_info.server_life = 0;
    device.expected.witness.server_life = 0;
  }
  SUBCASE("other storage") { server.device_info.export_uuid = {2}; }
  SUBCASE("unknown storage") {
    server.device_info.export_uuid = {};
    device.expected.export_uuid = {};
  }
  SUBCASE("requests may have reached over the old end") { device.expected.size -= 100; }
  SUBCASE("somebody else has written to it") { server.device_info.writer_serial = 0x7'0000'0005; }
  CHECK(reopen(server, {device}).losses.at(0).empty() != lost);
}

TEST_CASE("reopen: towards a server that lost FUA nothing may go on") {
  FakeServer server{{.features = 0}};
  const ReopenDevice device = device_at(server, "disk0");
  server.open_response.cache_policy = rnbd::wire::kCacheWriteback;
  const Outcome outcome = reopen(server, {device});
  CHECK(outcome.error == ESTALE);
  CHECK(mentions(outcome.complaint, "FUA"));
}

TEST_CASE("reopen: nothing goes on at a server whose record of writers is an older one") {
  FakeServer server;
  server.device_info.generation = 0x7'0000'0004;
  const std::vector<ReopenDevice> devices{device_at(server, "disk0")};
  auto& found = server.device_info.found_generation;
  SUBCASE("it is") {
    SUBCASE("by one reservation") { found = 0x7'0000'0003; }
    SUBCASE("there was none") { found = rnbd::wire::kNoWriterYet; }
    const Outcome outcome = reopen(server, devices);
    CHECK(outcome.error == EREMCHG);
    CHECK(mentions(outcome.complaint, "'disk0': the server's record of its writers is older"));
    CHECK(outcome.losses == std::vector<std::string>{""});
    const Outcome by_order = reopen(server, devices, /*any_server=*/true);
    CHECK(by_order.error == 0);
    CHECK(mentions(by_order.losses.at(0), "is older"));
  }
  SUBCASE("it is not") {
    SUBCASE("the same") { found = 0x7'0000'0004; }
    SUBCASE("a newer one") { found = 0x7'0000'0005; }
    SUBCASE("nobody knows") { found = 0; }
    const Outcome outcome = reopen(server, devices);
    CHECK(outcome.error == 0);
    CHECK(outcome.losses == std::vector<std::string>{""});
  }
}

TEST_CASE("reopen: where the record began anew, a writer's number counts, and a reader goes") {
  FakeServer server;
  server.device_info.generation = 0x7'0000'0004;
  std::vector<ReopenDevice> devices{device_at(server, "disk0")};
  server.device_info.found_generation = 0x9'0000'0001;
  SUBCASE("a writer") { CHECK(reopen(server, devices).error == 0); }
  SUBCASE("a reader") {
    SUBCASE("that may write later") { devices[0].options.unclaimed = true; }
    SUBCASE("for ever") { devices[0].options.access = AccessMode::read_only; }
    CHECK(reopen(server, devices).error == EREMCHG);
  }
}

TEST_CASE("reopen: who has seen no writer's record takes any") {
  for (const std::uint64_t known : {std::uint64_t{0}, rnbd::wire::kNoWriterYet}) {
    FakeServer server;
    server.device_info.generation = known;
    const std::vector<ReopenDevice> devices{device_at(server, "disk0")};
    server.device_info.found_generation = 0x9'0000'0001;
    CHECK(reopen(server, devices).error == 0);
  }
}

TEST_CASE("reopen: a server that has lost one record, and not all, loses that device") {
  FakeServer server;
  server.device_info.generation = server.device_info.found_generation = 0x7'0000'0004;
  std::vector<ReopenDevice> devices(2, device_at(server, "disk0"));
  devices[1].name = "disk1";
  devices[0].expected.witness.generation = 0x7'0000'0005;
  std::string loss;
  SUBCASE("which is there") {}
  SUBCASE("also if the other one is lost for another reason") {
    devices[1].expected.witness.writer_serial = 0x7'0000'0003;
    server.device_info.writer_serial = 0x7'0000'0004;
    loss = "another client";
  }
  const Outcome outcome = reopen(server, devices);
  CHECK(outcome.error == 0);
  CHECK(mentions(outcome.losses.at(0), "'disk0': the server's record of its writers is older"));
  CHECK(mentions(outcome.losses.at(1), loss));
  CHECK(outcome.losses.at(1).empty() == loss.empty());
  CHECK(outcome.remembered == std::vector{false, true});
}

TEST_CASE("reopen: what somebody else has written since is not written over") {
  FakeServer server;
  server.device_info.writer_serial = 0x7'0000'0004;
  const ReopenDevice device = device_at(server, "disk0");
  SUBCASE("nobody has had it") { CHECK(reopen(server, {device}).losses.at(0).empty()); }
  SUBCASE("somebody has") {
    server.device_info.writer_serial = 0x7'0000'0006;
    const Outcome outcome = reopen(server, {device});
    CHECK(mentions(outcome.losses.at(0), "another client"));
  }
  SUBCASE("another count does not know") {
    server.device_info.writer_serial = 0x9'0000'0001;
    CHECK(reopen(server, {device}).losses.at(0).empty());
  }
}

TEST_CASE("reopen: a reader may share what others have open for writing, or no longer") {
  FakeServer server;
  ReopenDevice device = device_at(server, "disk0");
  device.options.access = AccessMode::read_only;
  SUBCASE("no longer") {
    server.device_info.flags = server.device_info.flags | rnbd::wire::kDeviceReadOnly;
  }
  SUBCASE("now") { device.expected.read_only = true; }
  CHECK(reopen(server, {device}).losses.at(0).empty());
}

TEST_CASE("reopen: a device that nobody uses any more is found, not judged") {
  FakeServer server;
  const ReopenDevice device = device_at(server, "disk0");
  ReopenDevice leaving = device;
  leaving.leaving = true;
  leaving.expected.size = 1;
  SUBCASE("it is there") {
    const Outcome outcome = reopen(server, {leaving, device});
    CHECK(outcome.error == 0);
    CHECK(outcome.ids.size() == 2);
    CHECK(server.count(MessageType::device_info) == 1);
  }
  SUBCASE("it is not") {
    server.fail = [&](const Arrival& arrival) {
      return arrival.type() == MessageType::open && server.count(MessageType::open) == 1 ? ENOENT
                                                                                         : 0;
    };
    const Outcome outcome = reopen(server, {leaving, device});
    CHECK(outcome.error == 0);
    CHECK(outcome.ids.at(0) == rnbd::kNoDevice);
  }
}

TEST_CASE("reopen: what became larger, and an identity that is not known, do no harm") {
  FakeServer server;
  server.device_info.export_uuid = {1};
  ReopenDevice device = device_at(server, "disk0");
  SUBCASE("limits") {
    device.expected.max_io /= 2;
    device.expected.max_discard = device.expected.max_write_zeroes = 0;
  }
  SUBCASE("not known before") { device.expected.export_uuid = {}; }
  SUBCASE("not known now") { server.device_info.export_uuid = {}; }
  CHECK(reopen(server, {device}).losses.at(0).empty());
}

TEST_CASE("reopen: only a device that is gone or read-only now is lost at once") {
  for (const int answer : {ENOENT, EROFS, EPERM, EBUSY, EIO, ESTALE}) {
    CAPTURE(answer);
    const bool final = answer == ENOENT || answer == EROFS;
    FakeServer server;
    ReopenDevice refused = device_at(server, "disk0");
    const ReopenDevice other = device_at(server, "other");
    server.fail = [&](const Arrival& arrival) {
      const bool is_disk0 = arrival.type() == MessageType::open &&
                            rnbd::wire::decode_open(arrival.message)->device_name == "disk0";
      return is_disk0 ? answer : 0;
    };
    const int error = answer == ESTALE ? EIO : answer;  // ESTALE would end the session
    SUBCASE("when it is asked for patiently") {
      const Outcome outcome = reopen(server, {refused, other});
      CHECK(outcome.error == (final ? 0 : error));
      CHECK(server.count(MessageType::open) == 2);
      CHECK(mentions(final ? outcome.losses.at(0) : outcome.complaint, "'disk0' (rw)"));
    }
    refused.patient = false;
    SUBCASE("otherwise any refusal is final") {
      const Outcome outcome = reopen(server, {refused, other});
      CHECK(outcome.error == 0);
      CHECK(mentions(outcome.losses.at(0), "'disk0' (rw)"));
      CHECK(outcome.losses.at(1).empty());
      CHECK(outcome.ids == std::vector{rnbd::kNoDevice, server.open.at("other")});
    }
    SUBCASE("but not if nobody gains by that") {
      CHECK(reopen(server, {refused}).error == (final ? 0 : error));
      ReopenDevice leaving = other;
      leaving.leaving = true;
      CHECK(reopen(server, {refused, leaving}).error == (final ? 0 : error));
    }
    SUBCASE("nor as long as another refusal is waited for") {
      ReopenDevice patient = refused;
      patient.patient = true;
      CHECK(reopen(server, {refused, patient, other}).error == (final ? 0 : error));
    }
  }
}

TEST_CASE("reopen: EACCES means an eviction at rnbdkit's server only") {
  const auto refused_by = [](const FakeOptions& options) {
    FakeServer server{options};
    server.fail = [](const Arrival& arrival) {
      return arrival.type() == MessageType::open ? EACCES : 0;
    };
    return reopen(server, {device_at(server, "disk0")});
  };
  const Outcome evicted = refused_by({});
  CHECK(evicted.error == 0);
  CHECK(mentions(evicted.losses.at(0), "its session was evicted"));
  const Outcome waits = refused_by({.features = 0});  // Linux passes on its device's errno
  CHECK(waits.error == EACCES);
  CHECK(mentions(waits.complaint, "the server cannot open 'disk0' (rw) again"));
}

TEST_CASE("reopen: a server that may have requests of a lost device still ends the session") {
  for (const bool user_messages : {false, true}) {
    const std::uint32_t features = rtrs::wire::kFeatureUserMessages;
    FakeServer server{{.features = user_messages ? features : 0}};
    ReopenDevice device = device_at(server, "disk0");
    const ReopenDevice other = device_at(server, "other");
    device.patient = false;
    SUBCASE("another one") {
      device.expected.padded_size += 512;
      const Outcome outcome = reopen(server, {device, other});
      CHECK(outcome.error == ESTALE);
      CHECK(mentions(outcome.complaint, "'disk0' is not what it was"));
    }
    SUBCASE("gone") {
      server.fail = [](const Arrival& arrival) {
        return arrival.type() == MessageType::open ? ENOENT : 0;
      };
      CHECK(reopen(server, {device, other}).error == ESTALE);
    }
    SUBCASE("refused for now") {
      server.fail = [](const Arrival& arrival) {
        return arrival.type() == MessageType::open ? EPERM : 0;
      };
      CHECK(reopen(server, {device, other}).error == EPERM);
    }
    CHECK(server.count(MessageType::open) == 1);
  }
}

TEST_CASE("reopen: whichever device is lost, the others go on") {
  FakeServer server;
  ReopenDevice lost = device_at(server, "lost");
  lost.expected.size = 1;
  const ReopenDevice other = device_at(server, "other");
  const Outcome outcome = reopen(server, {other, lost, other});
  CHECK(outcome.error == 0);
  CHECK(outcome.losses.at(0).empty());
  CHECK_FALSE(outcome.losses.at(1).empty());
  CHECK(outcome.losses.at(2).empty());
}

TEST_CASE("reopen: an error of the greeting or of the device info is not final") {
  for (MessageType type : {MessageType::session_info, MessageType::device_info}) {
    FakeServer server;
    const auto device = device_at(server, "disk0");
    server.fail = [&](const Arrival& arrival) { return arrival.type() == type ? ENOENT : 0; };
    const Outcome outcome = reopen(server, {device});
    CHECK(outcome.error == ENOENT);
    CHECK_FALSE(outcome.complaint.empty());
  }
}

TEST_CASE("reopen: a malformed answer is told apart") {
  FakeServer server;
  const auto device = device_at(server, "disk0");
  SUBCASE("of OPEN") { server.open_response.header.type = 77; }
  SUBCASE("of DEVICE INFO") { server.device_info.header.type = 77; }
  const Outcome outcome = reopen(server, {device});
  CHECK(outcome.error == EPROTO);
  CHECK(mentions(outcome.complaint, "malformed"));
}

TEST_CASE("reopen: a path that dies ends it, and a cancelled one is referred to by nothing") {
  FakeServer server;
  SUBCASE("dies") {
    ReopenOperation operation{{device_at(server, "disk0")}, limits_of(server)};
    operation.start(server.lane);
    server.answer();
    server.lane.shut_down(ENOTCONN);
    CHECK(operation.finished());
    CHECK(operation.error() == ENOTCONN);
  }
  SUBCASE("cancelled") {
    {
      ReopenOperation operation{{device_at(server, "disk0")}, limits_of(server)};
      operation.start(server.lane);
      server.answer();
      operation.cancel(server.lane);
      CHECK_FALSE(operation.finished());
    }
    server.answer_all();
    CHECK(server.complaint == nullptr);
    CHECK(server.lane.permits().in_use() == 0);
  }
}

}  // namespace reopen_test
