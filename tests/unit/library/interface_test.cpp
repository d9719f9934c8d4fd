// SPDX-License-Identifier: BSD-3-Clause
// Both ends of the C interface in one process, over TCP; and a client that sends calls by hand.
#include <doctest/doctest.h>
#include <poll.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/library/call_message.hpp"
#include "rdma/library/include/rtrs.h"

namespace rtrs::library {
namespace {

using Handler = std::function<void(const rtrs_incoming&)>;

std::string text_of(const void* data, std::size_t length) {
  return {static_cast<const char*>(data), length};
}

/// A server with a handler, and events as text.
struct TestServer {
  explicit TestServer(Handler on_request, unsigned workers = 0) : handler{std::move(on_request)} {
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
    server = rtrs_listen("rtrs+tcp://127.0.0.1:0", &ops, this, &options, &error);
    REQUIRE_MESSAGE(server != nullptr, error.text);
    uri = "rtrs+tcp://127.0.0.1:" + std::to_string(rtrs_server_port(server));
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

void echo(const rtrs_incoming& incoming) {
  rtrs_finish(incoming.request, 0, incoming.data, incoming.data_length);
}

TEST_CASE("a server hears of sessions and their paths as they come and go") {
  TestServer server{echo};
  { TestClient client{server}; }
  CHECK(server.close() == 0);
  CHECK(server.events == "up 1 0 down ");
}

TEST_CASE("a request may be finished by another thread, with memory of its own") {
  std::vector<std::thread> threads;
  std::atomic<int> released{0};
  const std::string answer(700'000, 'a');
  TestServer server{[&](const rtrs_incoming& incoming) {
    threads.emplace_back([&, request = incoming.request] {
      rtrs_finish_with(
          request, answer.data(), answer.size(),
          [](void* context) { ++*static_cast<std::atomic<int>*>(context); }, &released);
    });
  }};
  TestClient client{server};
  for (int i = 0; i < 3; ++i) {
    std::string in(800'000, '?');
    CHECK(client.call("m", {}, &in) == 0);
    CHECK(in == answer);
  }
  CHECK(server.close() == 0);
  for (std::thread& thread : threads) thread.join();
  CHECK(released == 3);  // an answer that has arrived is not kept
}

TEST_CASE("data in pieces may be taken, those of one message not") {
  std::vector<std::string> taken;
  TestServer server{[&](const rtrs_incoming& incoming) {
    void* memory = rtrs_take_data(incoming.request);
    taken.push_back(memory != nullptr ? text_of(memory, incoming.data_length) : "nothing");
    std::free(memory);
    rtrs_finish(incoming.request, 0, nullptr, 0);
  }};
  TestClient client{server};
  const std::string large(600'000, 'x');
  CHECK(client.call("m", large) == 0);
  CHECK(client.call("m", "small") == 0);
  CHECK(server.close() == 0);
  CHECK(taken == std::vector<std::string>{large, "nothing"});
}

TEST_CASE("an answer can be written where it is sent from") {
  TestServer server{[](const rtrs_incoming& incoming) {
    REQUIRE(incoming.answer != nullptr);
    std::memcpy(incoming.answer, "in place", 8);
    rtrs_finish(incoming.request, 0, incoming.answer, 8);
  }};
  TestClient client{server};
  std::string in(100, '?');
  CHECK(client.call("m", "data", &in) == 0);
  CHECK(in == "in place");
}

TEST_CASE("what lasts too long is given up, and the client goes on") {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  TestServer server{[&](const rtrs_incoming& incoming) {
                      if (text_of(incoming.message, incoming.message_length) == "wait") gone.wait();
                      rtrs_finish(incoming.request, 0, nullptr, 0);
                    },
                    2};
  TestClient client{server, 250};
  CHECK(client.call("wait") == ETIMEDOUT);
  CHECK(client.call("go") == 0);
  go.set_value();
}

TEST_CASE("operations end in a callback, which may submit and must not wait") {
  TestServer server{echo};
  TestClient client{server};
  struct Chain {
    rtrs_client* client = nullptr;
    rtrs_operation operation{};
    int left = 100;
    int waited = 0;
    std::promise<int> end;
  } chain;
  chain.client = client.client;
  chain.operation.size = sizeof(chain.operation);
  chain.operation.message = "m";
  chain.operation.message_length = 1;
  chain.operation.context = &chain;
  chain.operation.done = [](rtrs_operation* operation) {
    auto& self = *static_cast<Chain*>(operation->context);
    self.waited = rtrs_call(self.client, "m", 1, nullptr, 0, nullptr, 0, nullptr, 0);
    if (operation->error != 0 || --self.left == 0) return self.end.set_value(operation->error);
    if (const int error = rtrs_submit(self.client, operation)) self.end.set_value(error);
  };
  REQUIRE(rtrs_submit(client.client, &chain.operation) == 0);
  CHECK(chain.end.get_future().get() == 0);
  CHECK(chain.waited == EDEADLK);
}

TEST_CASE("the descriptor is readable while operations that have ended wait") {
  TestServer server{echo};
  TestClient client{server};
  const int descriptor = rtrs_fd(client.client);
  pollfd polled{descriptor, POLLIN, 0};
  CHECK(poll(&polled, 1, 0) == 0);
  std::vector<rtrs_operation> operations(300);
  for (rtrs_operation& operation : operations) {
    operation.size = sizeof(operation);
    REQUIRE(rtrs_submit(client.client, &operation) == 0);
  }
  std::size_t ended = 0;
  while (ended < operations.size()) {
    REQUIRE(poll(&polled, 1, 20'000) == 1);
    rtrs_operation* some[7];
    ended += static_cast<std::size_t>(rtrs_next(client.client, some, 7));
  }
  CHECK(poll(&polled, 1, 0) == 0);
}

TEST_CASE("an operation that is cancelled in time is the caller's again") {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  TestServer server{[&](const rtrs_incoming& incoming) {
                      gone.wait();
                      rtrs_finish(incoming.request, 0, nullptr, 0);
                    },
                    2};
  TestClient client{server};
  rtrs_operation operation{};
  operation.size = sizeof(operation);
  CHECK(rtrs_cancel(client.client, &operation) == ENOENT);
  REQUIRE(rtrs_submit(client.client, &operation) == 0);
  CHECK(rtrs_cancel(client.client, &operation) == 0);
  CHECK(rtrs_cancel(client.client, &operation) == ENOENT);
  REQUIRE(rtrs_submit(client.client, &operation) == 0);
  go.set_value();
}

TEST_CASE("calls on the control connection are carried out, too") {
  TestServer server{echo};
  TestClient client{server};
  std::string in(10, '?');
  CHECK(client.call("m", "control", &in, RTRS_CONTROL) == 0);
  CHECK(in == "control");
}

TEST_CASE("options of another version are refused when they say something unknown") {
  struct {
    rtrs_client_options options;
    std::size_t unknown;
  } newer{};
  rtrs_error error{};
  newer.options.size = sizeof(newer);
  newer.unknown = 1;
  CHECK(rtrs_connect("rtrs+tcp://127.0.0.1:1", &newer.options, &error) == nullptr);
  CHECK(error.code == EINVAL);
  newer.options.size = 0;
  CHECK(rtrs_connect("rtrs+tcp://127.0.0.1:1", &newer.options, &error) == nullptr);
  CHECK(error.code == EINVAL);
  newer.options.size = sizeof(std::size_t);  // an older one that knows nothing yet
  newer.options.lanes = 1'000'000;
  TestServer server{echo};
  rtrs_client* client = rtrs_connect(server.uri.c_str(), &newer.options, &error);
  CHECK(client != nullptr);
  rtrs_disconnect(client);
}

// ---- Calls by hand ------------------------------------------------------------------------------

/// A client that says what no client of the library says.
struct RawClient {
  explicit RawClient(const TestServer& server) {
    ClientOptions options;
    options.session_name = "raw";
    const auto port = static_cast<std::uint16_t>(rtrs_server_port(server.server));
    options.paths = {{TransportKind::tcp, "", "127.0.0.1", port}};
    options.features = wire::kFeatureExactlyOnce | kFeatureCalls;
    options.lanes = 1;
    auto connected = Client::connect(options, {});
    REQUIRE(connected);
    client = std::move(*connected);
  }

  struct Once final : Operation {
    using Operation::finish;
    Request request;
    void start(ClientLane& lane) override { lane.submit(request); }
    void cancel(ClientLane& lane) override { lane.cancel(request); }
  };

  /// Sends a message with data, or with room for a reply.
  int send(const CallHeader& header, std::size_t room = 0, const std::string& data = {}) {
    Once once;
    answer.assign(room, '?');
    once.request.message = wire::bytes_of(header);
    once.request.is_read = data.empty();
    once.request.read_data = std::as_writable_bytes(std::span{answer});
    once.request.write_data = std::as_bytes(std::span{data});
    once.request.context = &once;
    once.request.done = [](ClientLane&, Request& request) {
      static_cast<Once*>(request.context)->finish(request.error);
    };
    return client->run(once, {});
  }
  /// Sends a call with room for an answer of 10 bytes, which is put into `answer`.
  int call(const CallHeader& header) {
    const int error = send(header, reply_size(10));
    if (error != 0) return error;
    std::uint64_t length = 0;
    std::memcpy(&length, answer.data(), sizeof(length));
    answer = answer.substr(kReplyHeader, length);
    return 0;
  }

  std::unique_ptr<Client> client;
  std::string answer;
};

/// With room for an answer of 10 bytes.
CallHeader call_of(std::uint16_t slot, std::uint32_t generation, std::uint64_t room = 10) {
  CallHeader header;
  header.slot = slot;
  header.generation = generation;
  header.place = room;
  return header;
}

/// Counts what is carried out, and answers with the count; with an error if there is room for 1
/// byte.
struct Counting {
  int runs = 0;
  void operator()(const rtrs_incoming& incoming) {
    const std::string answer = std::to_string(++runs);
    rtrs_finish(incoming.request, incoming.room == 1 ? EDOM : 0, answer.data(), answer.size());
  }
};

TEST_CASE("a call that comes again is answered again and not carried out again") {
  Counting counting;
  TestServer server{std::ref(counting)};
  RawClient client{server};
  for (int i = 0; i < 3; ++i) {
    CHECK(client.call(call_of(3, 1)) == 0);
    CHECK(client.answer == "1");
  }
  CHECK(client.call(call_of(3, 2)) == 0);
  CHECK(client.answer == "2");
  CHECK(client.call(call_of(3, 1)) == ECANCELED);  // a late copy of an older call
  for (int i = 0; i < 2; ++i) CHECK(client.send(call_of(4, 1, 1), reply_size(1)) == EDOM);
  CHECK(server.close() == 0);
  CHECK(counting.runs == 3);
}

TEST_CASE(
    "a call of a session that is forgotten is not carried out, and one that may be again is") {
  Counting counting;
  TestServer server{std::ref(counting)};
  RawClient client{server};
  CallHeader lost = call_of(0, 1);
  lost.flags = kVoid;
  CHECK(client.call(lost) == ECANCELED);
  CallHeader repeatable = call_of(0, 1);
  repeatable.flags = kRepeatable;
  CHECK(client.call(repeatable) == 0);
  CHECK(client.call(repeatable) == 0);
  CHECK(client.answer == "2");
}

TEST_CASE("a call that overtakes its data is told so, and carried out when they are there") {
  TestServer server{echo};
  RawClient client{server};
  CallHeader call = call_of(0, 1, 5000);
  call.flags = kStaged;
  call.piece_size = 4096;
  call.out_length = 5000;
  CallHeader piece = call;
  piece.kind = CallKind::piece;
  piece.flags = 0;
  const std::string tail(904, 'b'), head(4096, 'a');
  CHECK(client.send(call, reply_size(5000)) == kIncomplete);
  piece.place = 4096;
  CHECK(client.send(piece, 0, tail) == 0);
  CHECK(client.send(call, reply_size(5000)) == kIncomplete);
  piece.place = 0;
  CHECK(client.send(piece, 0, head) == 0);
  CHECK(client.send(call, reply_size(5000)) == 0);
  CHECK(client.answer.substr(kReplyHeader) == head.substr(0, kDirectAnswer));
  CHECK(client.send(piece, 0, head) == 0);  // a late copy
  CHECK(client.send(call, reply_size(5000)) == 0);
  CallHeader fetch = call_of(0, 1, kDirectAnswer);
  fetch.kind = CallKind::fetch;
  CHECK(client.send(fetch, 5000 - kDirectAnswer) == 0);
  CHECK(client.answer == head.substr(kDirectAnswer) + tail);
  CHECK(client.send(fetch, 5001 - kDirectAnswer) == EBADMSG);
  CallHeader forget = fetch;
  forget.kind = CallKind::forget;
  CHECK(client.send(forget) == 0);
  CHECK(client.send(fetch, 10) == EBADMSG);
  CHECK(client.send(call, reply_size(5000)) == ECANCELED);
}

TEST_CASE("messages that no client of the library sends are refused, and harm nobody") {
  Counting counting;
  TestServer server{std::ref(counting)};
  RawClient client{server};
  CHECK(client.call(call_of(256, 1)) == EBADMSG);           // no such slot
  CHECK(client.send(call_of(0, 1), 10) == EBADMSG);         // another room than it says
  CHECK(client.send(call_of(1, 1), 0, "data") == EBADMSG);  // an answer to a write
  CHECK(client.send(call_of(2, 1, 1ULL << 40), reply_size(1ULL << 40)) == EMSGSIZE);
  CallHeader fetch = call_of(2, 1, 0);
  fetch.kind = CallKind::fetch;
  CHECK(client.send(fetch, 10) == EBADMSG);  // there is no answer
  CallHeader piece = call_of(3, 1, 0);
  piece.kind = CallKind::piece;
  piece.piece_size = 4096;
  piece.out_length = 8192;
  CHECK(client.send(piece, 10) == EBADMSG);                        // a read
  CHECK(client.send(piece, 0, std::string(100, 'x')) == EBADMSG);  // too short
  piece.out_length = 1ULL << 40;
  piece.slot = 4;
  CHECK(client.send(piece, 0, std::string(4096, 'x')) == EMSGSIZE);
  CHECK(client.call(call_of(5, 1)) == 0);
  CHECK(client.answer == "1");  // nothing of all that was carried out
}

}  // namespace
}  // namespace rtrs::library
