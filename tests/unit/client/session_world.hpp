// SPDX-License-Identifier: BSD-3-Clause
// A session with a fake server, for tests of what is open in it and of what becomes of it.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bridge/client/remote_device.hpp"
#include "tests/unit/client/fake_client.hpp"

namespace rnbd::test {

using wire::AccessMode;
using wire::MessageType;
using Device = std::unique_ptr<RemoteDevice>;

struct World {
  explicit World(const FakeOptions& options = {}) {
    auto made = std::make_unique<FakeClient>(options);
    client = made.get();
    auto started =
        start_session(std::move(made), [this](rtrs::LogLevel level, const std::string& line) {
          if (level != rtrs::LogLevel::info) log.push_back(line);
        });
    REQUIRE(started);
    session = *started;
  }
  Device open(const std::string& name, const OpenOptions& options = {}) {
    auto device = session->open(name, options, {});
    REQUIRE_MESSAGE(device.has_value(), device.error().text);
    return std::move(*device);
  }
  std::uint64_t count(MessageType type) const { return client->server.count(type); }
  /// The name of the server's device that a write through `device` reaches.
  std::string reached(RemoteDevice& device, bool fua = false) {
    client->server.written.clear();
    const std::array<std::byte, 512> block{};
    const int error = device.write(0, block, fua, {});
    if (error != 0) return describe_error(error);
    return client->server.written.front();
  }
  void shrink_disk() {
    client->server.open_response.sectors = 8;
    client->server.device_info.size = 4096;
  }
  /// Runs `action` once, right behind the first answer to a message of that type.
  void after_first(MessageType type, std::function<void()> action) {
    client->after_answer = [this, type, action = std::move(action)](const Arrival& arrival) {
      if (arrival.type() != type) return;
      const std::function<void()> act = action;
      client->after_answer = nullptr;  // ends the life of `action`, too
      act();
    };
  }

  /// Keeps the next message of that type unanswered; the server is restarted meanwhile.
  void restart_during(MessageType type, std::uint32_t first_id, std::uint64_t epoch = 0) {
    client->stalled = [type](const Arrival& arrival) { return arrival.type() == type; };
    client->while_stalled = [this, first_id, epoch] {
      client->stalled = nullptr;
      CHECK(client->renew(first_id, epoch) == 0);
    };
  }

  std::vector<std::string> log;
  FakeClient* client = nullptr;
  std::shared_ptr<Session> session;
};

}  // namespace rnbd::test
