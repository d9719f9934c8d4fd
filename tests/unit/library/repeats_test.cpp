// SPDX-License-Identifier: BSD-3-Clause
// A server of the library, and a client that sends calls by hand.
#include <doctest/doctest.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <string>

#include "rdma/client.hpp"
#include "rdma/library/call_message.hpp"
#include "tests/unit/library/bench.hpp"

namespace rtrs::library::repeats_test {
namespace {

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
}  // namespace rtrs::library::repeats_test
