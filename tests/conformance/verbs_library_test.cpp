// SPDX-License-Identifier: BSD-3-Clause
// librtrs with registered memory, over RDMA. Runs in the lab, where there is a device.
#include <algorithm>
#include <cstdlib>
#include <future>
#include <string>
#include <utility>

#include "tests/unit/library/bench.hpp"

namespace rtrs::library::verbs_library_test {
namespace {

std::string where() {
  const char* address = std::getenv("RNBD_RDMA_ADDRESS");
  REQUIRE(address != nullptr);
  return "rtrs://" + std::string{address} + ":0";
}

/// Memory that a client's device knows.
struct Registered {
  Registered(const TestClient& of, std::size_t size) : client{of.client}, memory(size, '?') {
    rtrs_error error{};
    REQUIRE_MESSAGE(rtrs_register_memory(client, memory.data(), size, &error) == 0, error.text);
  }
  ~Registered() { CHECK(rtrs_unregister_memory(client, memory.data(), memory.size()) == 0); }

  rtrs_client* client;
  std::string memory;
};

TEST_CASE("librtrs over RDMA: data of every size come back into registered memory") {
  std::string seen;
  TestServer server{[&](const rtrs_incoming& incoming) {
                      if (incoming.room != 0) return echo(incoming);
                      seen = text_of(incoming.data, incoming.data_length);
                      rtrs_finish(incoming.request, 0, nullptr, 0);
                    },
                    0, where().c_str()};
  TestClient client{server};
  Registered out{client, 2'000'000}, in{client, 2'000'000};
  for (const std::size_t size : {1, 241, 4096, 262'144, 262'145, 1'900'000}) {
    CAPTURE(size);
    for (std::size_t i = 0; i < size; ++i) out.memory[i] = static_cast<char>(i * 7 + size);
    std::ranges::fill(in.memory, '?');
    const iovec from{out.memory.data() + 3, size};
    const iovec to{in.memory.data() + 5, size};
    std::size_t length = 0;
    CHECK(rtrs_call(client.client, "m", 1, &from, 1, &to, 1, &length, 0) == 0);
    CHECK(length == size);
    CHECK(in.memory.compare(5, size, out.memory, 3, size) == 0);
    CHECK(in.memory[4] == '?');
    CHECK(in.memory[5 + size] == '?');
    // Without an answer the data ride in one message.
    CHECK(rtrs_call(client.client, "m", 1, &from, 1, nullptr, 0, nullptr, 0) == 0);
    CHECK(seen == out.memory.substr(3, size));
  }
}

// It is registered in two pieces then, from 0 and from 240 MiB on.
TEST_CASE("librtrs over RDMA: all parts of registered memory of 300 MiB are used") {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  constexpr std::size_t kSize = 200'000;
  TestServer server{[](const rtrs_incoming& incoming) { echo(incoming); }, 0, where().c_str()};
  TestClient client{server};
  Registered all{client, 300 * kMiB};
  const std::size_t half = kSize / 2;
  for (const std::size_t start : {std::size_t{0}, 240 * kMiB - kSize, 240 * kMiB - half, 240 * kMiB,
                                  256 * kMiB - half, 256 * kMiB, 300 * kMiB - kSize}) {
    CAPTURE(start);
    char* const out = all.memory.data() + 100 * kMiB;
    for (std::size_t i = 0; i < kSize; ++i) out[i] = static_cast<char>(i * 7 + start);
    for (const auto& [source, target] : {std::pair{out, all.memory.data() + start},
                                         std::pair{all.memory.data() + start, out + kSize}}) {
      const iovec from{source, kSize};
      const iovec to{target, kSize};
      std::size_t length = 0;
      CHECK(rtrs_call(client.client, "m", 1, &from, 1, &to, 1, &length, 0) == 0);
      CHECK(length == kSize);
    }
    CHECK(std::equal(out, out + kSize, out + kSize));
  }
}

TEST_CASE("librtrs over RDMA: nothing comes into registered memory that was taken back") {
  std::promise<rtrs_request*> begun;
  const std::string answer(4000, 'a');
  TestServer server{[&](const rtrs_incoming& incoming) {
                      if (incoming.message_length == 0) return echo(incoming);
                      begun.set_value(incoming.request);
                    },
                    0, where().c_str()};
  TestClient client{server};
  Registered in{client, 100'000};
  const iovec to{in.memory.data(), answer.size()};
  rtrs_operation operation{};
  operation.size = sizeof(operation);
  operation.message = "m";
  operation.message_length = 1;
  operation.in = &to;
  operation.in_count = 1;
  REQUIRE(rtrs_submit(client.client, &operation) == 0);
  rtrs_request* const request = begun.get_future().get();
  REQUIRE(rtrs_cancel(client.client, &operation) == 0);
  rtrs_finish(request, 0, answer.data(), answer.size());
  std::string echoed(5, '?');
  CHECK(client.call("", "alive", &echoed) == 0);  // over the path that has come back
  CHECK(echoed == "alive");
  CHECK(in.memory == std::string(in.memory.size(), '?'));
}

}  // namespace
}  // namespace rtrs::library::verbs_library_test
