// SPDX-License-Identifier: BSD-3-Clause
// Servers that do harm to a session of our client: the path ends and says why, and nobody hangs.
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>

#include "rdma/core/client/lane.hpp"
#include "tests/hostile/raw_session.hpp"
#include "tests/hostile/scripted_server.hpp"

namespace rtrs::hostile::server_test {
namespace {

class Read final : public Operation {
 public:
  explicit Read(std::size_t bytes = 4096) : data(bytes) {
    request_.message = ConstBytes{message_};
    request_.is_read = true;
    request_.read_data = MutableBytes{data};
    request_.context = this;
    request_.done = [](ClientLane&, Request& request) {
      static_cast<Read*>(request.context)->finish(request.error);
    };
  }
  void start(ClientLane& lane) override { lane.submit(request_); }
  void cancel(ClientLane& lane) override { lane.cancel(request_); }
  std::vector<std::byte> data;

 private:
  std::vector<std::byte> message_ = std::vector<std::byte>(32);
  Request request_;
};

/// A client's request as it arrived: the place of its answer.
struct Asked {
  wire::RequestImmediate where;
  wire::Descriptor descriptor;
};

/// `answer` is called with the lane and the first request of the client, whose path must die with
/// `text`, and whose read must fail, since it has no other path.
void loses(const wire::AcceptParameters& accept,
           const std::function<void(ScriptedServer::Connections&, Asked)>& answer,
           const std::string& text) {
  ScriptedServer server{[&](ScriptedServer& self) {
    auto all = self.up(accept);
    if (all.empty()) return;
    for (auto arrival = all[1]->next(); arrival; arrival = all[1]->next()) {
      if (!arrival->immediate ||
          wire::type_of(*arrival->immediate) != wire::ImmediateType::io_request)
        continue;
      Asked asked{wire::decode_request(*arrival->immediate, accept.queue_depth), {}};
      const auto at = asked.where.buffer_id * accept.chunk_size() + asked.where.header_offset + 8;
      asked.descriptor = wire::copy_of<wire::Descriptor>(all[0]->memory().subspan(at));
      answer(all, asked);
      break;
    }
    ScriptedServer::until_closed(all);
  }};
  std::mutex mutex;
  std::string log;
  auto options = server.options();
  options.no_path_timeout = std::chrono::milliseconds{1};
  options.log = [&](LogLevel, const std::string& line) {
    const std::lock_guard lock{mutex};
    log += line + '\n';
  };
  auto client = Client::connect(options, {});
  REQUIRE_MESSAGE(client.has_value(), (client ? "" : client.error().text));
  Read read;
  CHECK((*client)->run(read, {}) == EIO);
  client->reset();
  const auto lost = log.find(" is lost: ");
  REQUIRE_MESSAGE(lost != std::string::npos, log);
  CHECK_MESSAGE(log.substr(lost, log.find('\n', lost) - lost).find(text) != std::string::npos, log);
}

TEST_CASE("answers to nothing end the path") {
  const auto says = [](wire::ResponseImmediate response, const char* text,
                       wire::ImmediateType type = wire::ImmediateType::io_response) {
    loses(
        usual_accept(),
        [&](auto& all, Asked) { all[1]->post({.immediate = encode(response, type)}); }, text);
  };
  const char* unused = "a reply for a permit that is not in use";
  says({15, 0}, unused);
  says({0, EIO}, unused);  // connection 0's
  says({16, 0}, unused);
  says({0x7FFFF, 0}, unused);
  says({15, 0}, unused, wire::ImmediateType::io_response_with_invalidate);
  says({5, 0}, "a request from a server", wire::ImmediateType::io_request);
}

TEST_CASE("the same answer twice ends the path") {
  loses(
      usual_accept(),
      [](auto& all, Asked asked) {
        // The request is not answered by an error, because the second answer may be there first.
        const auto answer = encode(wire::ResponseImmediate{asked.where.buffer_id + 1, 0});
        all[1]->post({.immediate = answer});
        all[1]->post({.immediate = answer});
      },
      "a reply for a permit that is not in use");
}

TEST_CASE("answers of the wrong kind for the mode end the path") {
  SUBCASE("static keys: a message") {
    loses(
        usual_accept(),
        [](auto& all, Asked asked) {
          const wire::RkeyMessage message{
              .buffer_id = static_cast<std::uint16_t>(asked.where.buffer_id), .key = 7};
          all[1]->post({.opcode = IBV_WR_SEND_WITH_IMM,
                        .payload = wire::bytes_of(message),
                        .immediate = encode(wire::ResponseImmediate{asked.where.buffer_id, 0})});
        },
        "longer than");
  }
  SUBCASE("static keys: an empty message") {
    loses(
        usual_accept(),
        [](auto& all, Asked asked) {
          all[1]->post({.opcode = IBV_WR_SEND_WITH_IMM,
                        .immediate = encode(wire::ResponseImmediate{asked.where.buffer_id, 0})});
        },
        "an unexpected message");
  }
  SUBCASE("new keys: no message") {
    auto accept = usual_accept();
    accept.new_rkey = true;
    loses(
        accept,
        [](auto& all, Asked asked) {
          all[1]->post({.immediate = encode(wire::ResponseImmediate{asked.where.buffer_id, 0})});
        },
        "a reply without the chunk's new key");
  }
}

TEST_CASE("key messages that cannot be end the path") {
  auto accept = usual_accept();
  accept.new_rkey = true;
  const auto says = [&](wire::RkeyMessage message, std::size_t size, std::uint32_t buffer_offset,
                        const char* text) {
    loses(
        accept,
        [&](auto& all, Asked asked) {
          if (message.buffer_id == 0)
            message.buffer_id = static_cast<std::uint16_t>(asked.where.buffer_id);
          const auto bytes = joined(message, message);
          const wire::ResponseImmediate response{asked.where.buffer_id + buffer_offset, 0};
          all[1]->post({.opcode = IBV_WR_SEND_WITH_IMM,
                        .payload = ConstBytes{bytes}.first(size),
                        .immediate = encode(response)});
        },
        text);
  };
  says({.buffer_id = 15, .key = 7}, 8, 0, "field out of range");
  says({.key = 7}, 8, 1, "field out of range");
  says({.type = 3, .key = 7}, 8, 0, "unexpected message type");
  says({.key = 7}, 4, 0, "too short");
  says({.key = 7}, 0, 0, "too short");
  says({.key = 7}, 9, 0, "longer than");
}

TEST_CASE("data of another length, or to another place, ends the path") {
  const std::vector<std::byte> data(8192);
  const auto writes = [&](std::size_t size, std::int64_t distance, std::uint32_t key_offset,
                          const char* text) {
    loses(
        usual_accept(),
        [&](auto& all, Asked asked) {
          const auto& d = asked.descriptor;
          all[1]->post(
              {.payload = ConstBytes{data}.first(size),
               .to = {d.address + static_cast<std::uint64_t>(distance), d.key + key_offset},
               .immediate = encode(wire::ResponseImmediate{asked.where.buffer_id, 0})});
        },
        text);
  };
  writes(512, 0, 0, "a reply with the wrong amount of data");
  writes(4096, 0, 1, "a key or an address that it may not use");
  writes(4096, -(std::int64_t{1} << 32), 0, "a key or an address that it may not use");
  writes(8192, std::int64_t{1} << 32, 0, "a key or an address that it may not use");
  loses(
      usual_accept(),
      [](auto& all, Asked asked) {
        all[1]->post({.opcode = IBV_WR_SEND_WITH_INV, .immediate = asked.descriptor.key});
      },
      "a key or an address that it may not use");
}

TEST_CASE("a server that hangs up or falls silent with requests under way") {
  loses(
      usual_accept(), [](auto& all, Asked) { all[1]->disconnect(); },
      "the peer closed the connection");
  loses(
      usual_accept(), [](auto& all, Asked) { all[0]->disconnect(); },
      "the peer closed the connection");
  auto own = usual_accept();
  own.extension.present = true;  // so that the heartbeats are short
  loses(
      own, [](auto&, Asked) {}, "does not answer heartbeats");
}

/// Would fill any new session.
class Willing final : public RecoveryHandler {
 public:
  std::unique_ptr<Operation> reopen(const SessionLimits&) override {
    return std::make_unique<Read>();
  }
  int reopened(Operation&) override { return 0; }
};

TEST_CASE("a server that comes back with smaller limits ends the session for good") {
  const auto comes_back = [](const wire::AcceptParameters& other) {
    ScriptedServer server{[&](ScriptedServer& self) {
      auto all = self.up(usual_accept());
      if (all.empty() || !all[1]->next()) return;
      all.clear();  // with a request under way
      all = self.up(other);
      ScriptedServer::until_closed(all);
    }};
    Willing recovery;
    auto options = server.options();
    options.recovery = &recovery;
    const auto client = Client::connect(options, {});
    REQUIRE_MESSAGE(client.has_value(), (client ? "" : client.error().text));
    Read read;
    CHECK((*client)->run(read, {}) == EIO);
    CHECK_FALSE((*client)->alive());
    const std::string why = (*client)->failure();
    CHECK_MESSAGE(why.find("came back with other limits") != std::string::npos, why);
    CHECK((*client)->run(read, {}) == EIO);
  };
  auto other = usual_accept();
  SUBCASE("fewer permits") { other.queue_depth /= 2; }
  SUBCASE("smaller requests") { other.max_io_size /= 2; }
  comes_back(other);
}

TEST_CASE("a flood of heartbeats is answered or ends the path, and callers can give up") {
  loses(
      usual_accept(),
      [](auto& all, Asked) {
        for (int i = 0; i < 20'000 && !all[0]->disconnected(); ++i) {
          all[0]->post({.immediate = wire::kHeartbeat});
        }
        all[0]->disconnect();
      },
      "");
}

/// A server of a session with so many permits, whose first request it answers with ENOSPC.
struct DeepServer {
  explicit DeepServer(std::uint16_t queue_depth) : accept{usual_accept()} {
    accept.queue_depth = queue_depth;
    accept.max_io_size = 2048;
    accept.max_header_size = 2048;
  }

  void serve(ScriptedServer& self) const {
    auto all = self.accept_all(wire::encode(accept));
    if (all.empty() || !all[0]->next()) return;
    const RemoteMemory memory = all[0]->exposed();
    const std::array descriptors{
        wire::Descriptor{memory.address, memory.key, accept.queue_depth * 4096U}};
    all[0]->post({.opcode = IBV_WR_SEND, .payload = wire::encode_info_response(descriptors)});
    for (auto arrival = all[1]->next(); arrival; arrival = all[1]->next()) {
      if (!arrival->immediate) continue;
      const auto where = wire::decode_request(*arrival->immediate, accept.queue_depth);
      all[1]->post({.immediate = encode(wire::ResponseImmediate{where.buffer_id, ENOSPC})});
      break;
    }
    ScriptedServer::until_closed(all);
  }

  wire::AcceptParameters accept;
};

TEST_CASE("a queue depth as large as soft-RoCE takes works") {
  const DeepServer deep{16000};  // 32,000 receives, of 32,767 completions
  ScriptedServer server{[&](ScriptedServer& self) { deep.serve(self); }};
  auto options = server.options();
  options.connect_timeout = std::chrono::seconds{20};
  const auto client = Client::connect(options, {});
  REQUIRE_MESSAGE(client.has_value(), (client ? "" : client.error().text));
  CHECK((*client)->limits().queue_depth == deep.accept.queue_depth);
  Read read{deep.accept.max_io_size};
  CHECK((*client)->run(read, {}) == ENOSPC);
}

TEST_CASE("a queue depth that the device has no room for is refused with the device's limit") {
  const DeepServer deep{65535};
  ScriptedServer server{[&](ScriptedServer& self) { deep.serve(self); }};
  const auto client = Client::connect(server.options(), {});
  REQUIRE_FALSE(client.has_value());
  CAPTURE(client.error().text);
  CHECK(client.error().text.find("the device takes up to 32767") != std::string::npos);
  CHECK(client.error().text.find("--queue-depth") != std::string::npos);
}

}  // namespace
}  // namespace rtrs::hostile::server_test
