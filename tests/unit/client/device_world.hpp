// SPDX-License-Identifier: BSD-3-Clause
// A device of a fake server and what tests of it share.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "bridge/client/remote_device.hpp"
#include "tests/unit/client/fake_client.hpp"

namespace rnbd::test {

using wire::AccessMode;
using wire::IoOperation;
using wire::MessageType;

inline constexpr FakeOptions kSmall{.max_io_size = 16384, .slots = 8, .disk_size = 64 * 1024};

/// A device of a fake server, with the shape that a test wants.
struct DeviceWorld {
  explicit DeviceWorld(const FakeOptions& options = kSmall,
                       const std::function<void(FakeClient&)>& prepare = nullptr,
                       const OpenOptions& open = {}) {
    auto made = std::make_unique<FakeClient>(options);
    client = made.get();
    if (prepare) prepare(*client);
    auto started = start_session(std::move(made));
    REQUIRE(started);
    session = *started;
    auto opened = session->open("disk0", open, {});
    REQUIRE(opened);
    device = std::move(*opened);
    client->server.executed.clear();
  }
  std::vector<IoOperation> operations() const {
    std::vector<IoOperation> all;
    for (const auto& io : client->server.executed) all.push_back(io.operation());
    return all;
  }
  FakeClient* client;
  std::shared_ptr<Session> session;
  std::unique_ptr<RemoteDevice> device;
};

inline void large_blocks(FakeClient& client) {
  client.server.open_response.logical_block_size = 4096;
}

inline std::vector<std::byte> filled(std::size_t size, unsigned seed) {
  std::mt19937 random{seed};
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace rnbd::test
