// SPDX-License-Identifier: BSD-3-Clause
// A tiny protocol over RTRS for tests of sessions: no blocks, only "store these bytes" and "give
// them back".
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/core/client/lane.hpp"
#include "rdma/server.hpp"

namespace rtrs::test {

/// Answers a write by storing its data, a read by what was stored last; messages may ask for other
/// behaviour: "E<n>" answers errno n, "H" keeps the request (it hangs), "B" blocks the event loop
/// while `blocked`.
class EchoHandler final : public ServerHandler {
 public:
  void* on_session_up(ServerSession&) override {
    ++sessions;
    return nullptr;
  }
  void on_session_down(ServerSession&) override { --sessions; }
  void on_request(ServerSession&, ServerRequest& request) override {
    ++requests;
    const std::string message{reinterpret_cast<const char*>(request.message.data()),
                              request.message.size()};
    if (message.starts_with("E")) return request.finish(std::stoi(message.substr(1)));
    if (message.starts_with("H")) {
      held = &request;
      all_held.push_back(&request);
      return;
    }
    if (message.starts_with("B")) {
      blocked = true;
      blocked.notify_all();
      blocked.wait(true);
    }
    if (request.is_read) {
      for (std::size_t i = 0; i < request.data.size(); ++i) {
        request.data[i] = static_cast<std::byte>(message.size() + i);
      }
    } else {
      bytes_written += request.data.size();
    }
    request.finish(0);
  }

  std::atomic<int> sessions{0};
  std::atomic<int> requests{0};
  std::atomic<std::uint64_t> bytes_written{0};
  std::atomic<ServerRequest*> held{nullptr};  ///< the last one
  std::vector<ServerRequest*> all_held;       ///< of one session: its event loop's
  std::atomic<bool> blocked{false};
};

/// TCP over loopback; or RDMA to ourselves when RNBD_RDMA_ADDRESS names the address of a device.
struct TestTransport {
  TransportKind kind = TransportKind::tcp;
  std::string host = "127.0.0.1";
};
inline TestTransport test_transport() {
  const char* address = std::getenv("RNBD_RDMA_ADDRESS");
  if (address == nullptr) return {};
  return {TransportKind::rdma, address};
}

/// A server on a free port, unless one is named.
class EchoServer {
 public:
  explicit EchoServer(ServerOptions options = {}, std::uint16_t wanted = 0) {
    const auto [kind, host] = test_transport();
    options.listen = {{kind, host, wanted}};
    server = Server::create(std::move(options), handler);
    const auto started = server->start();
    REQUIRE_MESSAGE(started.has_value(), (started ? "" : started.error().text));
    const std::string address = server->addresses().at(0);
    port = static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1)));
  }
  ~EchoServer() {
    if (server) CHECK(server->stop(std::chrono::seconds{5}));
  }

  EchoHandler handler;
  std::unique_ptr<Server> server;
  std::uint16_t port = 0;
};

inline ClientOptions client_options(std::uint16_t port) {
  static std::atomic<int> counter{0};
  ClientOptions options;
  options.session_name = "test-" + std::to_string(++counter);
  const auto [kind, host] = test_transport();
  options.paths = {{kind, "", host, port}};
  options.lanes = 2;
  return options;
}

/// One request as an operation.
class EchoOperation final : public Operation {
 public:
  EchoOperation(std::string message, MutableBytes read, ConstBytes write)
      : message_{std::move(message)} {
    request_.message = std::as_bytes(std::span{message_});
    request_.is_read = !read.empty() || write.empty();
    request_.read_data = read;
    request_.write_data = write;
    request_.context = this;
    request_.done = [](ClientLane&, Request& request) {
      static_cast<EchoOperation*>(request.context)->finish(request.error);
    };
  }
  void start(ClientLane& lane) override { lane.submit(request_); }
  void cancel(ClientLane& lane) override { lane.cancel(request_); }

 private:
  std::string message_;
  Request request_;
};

inline std::unique_ptr<Client> connect(ClientOptions options) {
  auto client = Client::connect(std::move(options), {});
  REQUIRE_MESSAGE(client.has_value(), (client ? "" : client.error().text));
  return std::move(*client);
}

}  // namespace rtrs::test
