// SPDX-License-Identifier: BSD-3-Clause
// Both ends of the C interface in one process, over TCP.
#pragma once

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <string>
#include <utility>

#include "rdma/library/include/rtrs.h"

namespace rtrs::library {

using Handler = std::function<void(const rtrs_incoming&)>;

inline std::string text_of(const void* data, std::size_t length) {
  return {static_cast<const char*>(data), length};
}

/// A server with a handler, and events as text.
struct TestServer {
  explicit TestServer(Handler on_request, unsigned workers = 0,
                      const char* where = "rtrs+tcp://127.0.0.1:0")
      : handler{std::move(on_request)} {
    rtrs_server_ops ops{};
    ops.size = sizeof(ops);
    ops.request = [](void* context, const rtrs_incoming* incoming) {
      static_cast<TestServer*>(context)->handler(*incoming);
    };
    ops.session_up = [](void* context, rtrs_session* session) {
      rtrs_session_set_context(session, context);
      static_cast<TestServer*>(context)->events += "up ";
    };
    ops.session_down = [](void* context, rtrs_session* session) {
      CHECK(rtrs_session_context(session) == context);
      static_cast<TestServer*>(context)->events += "down ";
    };
    ops.paths_changed = [](void* context, rtrs_session*, unsigned paths) {
      static_cast<TestServer*>(context)->events += std::to_string(paths) + " ";
    };
    rtrs_server_options options{};
    options.size = sizeof(options);
    options.workers = workers;
    rtrs_error error{};
    server = rtrs_listen(where, &ops, this, &options, &error);
    REQUIRE_MESSAGE(server != nullptr, error.text);
    const std::string first{where, std::strcspn(where, ",")};
    uri = first.substr(0, first.rfind(':') + 1) + std::to_string(rtrs_server_port(server));
  }
  ~TestServer() { CHECK(close() == 0); }
  int close() { return rtrs_server_close(std::exchange(server, nullptr), 5000); }

  Handler handler;
  std::string events;  ///< of the one event loop; to be read when the server is closed
  rtrs_server* server = nullptr;
  std::string uri;
};

struct TestClient {
  explicit TestClient(const TestServer& server, unsigned call_timeout_ms = 0) {
    rtrs_client_options options{};
    options.size = sizeof(options);
    options.call_timeout_ms = call_timeout_ms;
    rtrs_error error{};
    client = rtrs_connect(server.uri.c_str(), &options, &error);
    REQUIRE_MESSAGE(client != nullptr, error.text);
  }
  ~TestClient() { rtrs_disconnect(client); }

  int call(const std::string& message, std::string out = {}, std::string* in = nullptr,
           unsigned flags = 0) {
    const iovec from{out.data(), out.size()};
    const iovec to{in != nullptr ? in->data() : nullptr, in != nullptr ? in->size() : 0};
    std::size_t length = 0;
    const int error = rtrs_call(client, message.data(), message.size(), &from, 1, &to,
                                in != nullptr ? 1 : 0, &length, flags);
    if (in != nullptr) in->resize(length);
    return error;
  }

  rtrs_client* client = nullptr;
};

inline void echo(const rtrs_incoming& incoming) {
  rtrs_finish(incoming.request, 0, incoming.data, incoming.data_length);
}

}  // namespace rtrs::library
