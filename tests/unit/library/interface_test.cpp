// SPDX-License-Identifier: BSD-3-Clause
// Both ends of the C interface in one process, over TCP.
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

#include "tests/unit/library/bench.hpp"

namespace rtrs::library::interface_test {
namespace {

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

TEST_CASE("memory is registered once, and a client without RDMA goes on using it as before") {
  TestServer server{echo};
  TestClient client{server};
  std::string memory(1'000'000, 'm');
  rtrs_error error{};
  CHECK(rtrs_register_memory(client.client, nullptr, 0, &error) == EINVAL);
  CHECK(rtrs_register_memory(client.client, memory.data(), memory.size(), &error) == 0);
  CHECK(rtrs_register_memory(client.client, memory.data(), memory.size(), &error) == EEXIST);
  const iovec out{memory.data(), 600'000};
  const iovec in{memory.data() + 300'000, 600'000};
  std::size_t length = 0;
  CHECK(rtrs_call(client.client, "m", 1, &out, 1, &in, 1, &length, 0) == 0);
  CHECK(length == 600'000);
  CHECK(rtrs_unregister_memory(client.client, memory.data(), memory.size() - 1) == ENOENT);
  CHECK(rtrs_unregister_memory(client.client, memory.data(), memory.size()) == 0);
  CHECK(rtrs_unregister_memory(client.client, memory.data(), memory.size()) == ENOENT);
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

/// Asks for an answer of unknown length, and waits.
struct Asked {
  rtrs_operation operation{};
  std::promise<void> end;

  Asked(rtrs_client* client, const std::string& words, std::size_t most) {
    operation.size = sizeof(operation);
    operation.message = words.data();
    operation.message_length = words.size();
    operation.most = most;
    operation.context = this;
    operation.done = [](rtrs_operation* done) {
      static_cast<Asked*>(done->context)->end.set_value();
    };
    REQUIRE(rtrs_submit(client, &operation) == 0);
    end.get_future().wait();
  }
  ~Asked() { rtrs_free(operation.answer); }
};

TEST_CASE("an operation may have an answer of unknown length") {
  const std::string large(3'000'000, 'l');
  TestServer server{[&](const rtrs_incoming& incoming) {
    const std::size_t wanted = incoming.message_length == 1 ? 5 : large.size();
    rtrs_finish(incoming.request, 0, large.data(), wanted);
  }};
  TestClient client{server};
  for (const std::string words : {"s", "large", "s"}) {
    const Asked asked{client.client, words, large.size()};
    CHECK(asked.operation.error == 0);
    CHECK(text_of(asked.operation.answer, asked.operation.answer_length) ==
          large.substr(0, words == "s" ? 5 : large.size()));
  }
  const Asked asked{client.client, "large", large.size() - 1};
  CHECK(asked.operation.error == EMSGSIZE);
  CHECK(asked.operation.answer == nullptr);

  rtrs_operation both{};
  both.size = sizeof(both);
  both.most = 1;
  const iovec room{&both, 1};
  both.in = &room;
  both.in_count = 1;
  CHECK(rtrs_submit(client.client, &both) == EINVAL);
}

TEST_CASE("an operation of the first version has no answer of its own") {
  TestServer server{[](const rtrs_incoming& incoming) {
    rtrs_finish(incoming.request, incoming.room == 0 ? 0 : EPROTO, nullptr, 0);
  }};
  TestClient client{server};
  rtrs_operation operation{};
  operation.size = offsetof(rtrs_operation, most);
  operation.most = 77;  // memory behind the caller's structure
  operation.answer = &operation;
  std::promise<int> end;
  operation.context = &end;
  operation.done = [](rtrs_operation* done) {
    static_cast<std::promise<int>*>(done->context)->set_value(done->error);
  };
  REQUIRE(rtrs_submit(client.client, &operation) == 0);
  CHECK(end.get_future().get() == 0);
  CHECK(operation.answer == &operation);
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
  rtrs_operation operation{};
  TestClient client{server};  // its end cancels the operation
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

/// Submits so many operations on the control connection at once, and waits for their ends.
std::vector<rtrs_operation> run_on_control(rtrs_client* client, std::vector<std::string>& words) {
  std::vector<rtrs_operation> operations(words.size());
  for (std::size_t i = 0; i < words.size(); ++i) {
    operations[i].size = sizeof(operations[i]);
    operations[i].flags = RTRS_CONTROL | RTRS_NOWAIT;  // which does not refuse what is taken
    operations[i].message = words[i].data();
    operations[i].message_length = words[i].size();
    REQUIRE(rtrs_submit(client, &operations[i]) == 0);
  }
  pollfd polled{rtrs_fd(client), POLLIN, 0};
  for (std::size_t ended = 0; ended < words.size();) {
    REQUIRE(poll(&polled, 1, 20'000) == 1);
    rtrs_operation* some[7];
    ended += static_cast<std::size_t>(rtrs_next(client, some, 7));
  }
  return operations;
}

TEST_CASE("what is submitted on the control connection arrives in its order, beside I/O") {
  std::vector<std::string> seen;
  TestServer server{[&](const rtrs_incoming& incoming) {
    const std::string words = text_of(incoming.message, incoming.message_length);
    if (words != "io") seen.push_back(words);
    rtrs_finish(incoming.request, words == "7" ? EDOM : 0, nullptr, 0);
  }};
  TestClient client{server};
  std::vector<std::string> words;
  for (int i = 0; i < 200; ++i) words.push_back(std::to_string(i));
  std::thread beside{[&] {
    for (int i = 0; i < 200; ++i) CHECK(client.call("io") == 0);
  }};
  const auto operations = run_on_control(client.client, words);
  beside.join();
  CHECK(server.close() == 0);
  CHECK(seen == words);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    CHECK(operations[i].error == (i == 7 ? EDOM : 0));
  }
}

TEST_CASE("an operation on the control connection can be given up, and ends with its client") {
  std::promise<void> go;
  std::shared_future<void> gone = go.get_future().share();
  TestServer server{[&](const rtrs_incoming& incoming) {
                      gone.wait();
                      rtrs_finish(incoming.request, 0, nullptr, 0);
                    },
                    2};
  rtrs_operation given_up{}, left{};
  std::promise<int> end;
  for (rtrs_operation* operation : {&given_up, &left}) {
    operation->size = sizeof(*operation);
    operation->flags = RTRS_CONTROL;
    operation->context = &end;
    operation->done = [](rtrs_operation* done) {
      static_cast<std::promise<int>*>(done->context)->set_value(done->error);
    };
  }
  {
    TestClient client{server};
    REQUIRE(rtrs_submit(client.client, &given_up) == 0);
    REQUIRE(rtrs_submit(client.client, &left) == 0);
    CHECK(rtrs_cancel(client.client, &given_up) == 0);
    CHECK(rtrs_cancel(client.client, &given_up) == ENOENT);
  }
  CHECK(end.get_future().get() == ECANCELED);
  go.set_value();
}

TEST_CASE("a client's paths can be seen and changed, and its server can say where it listens") {
  TestServer server{echo, 0, "rtrs+tcp://127.0.0.1:0,127.0.0.2:0"};
  char first[64], second[64];
  REQUIRE(rtrs_server_address(server.server, 0, first, sizeof(first)) == 0);
  REQUIRE(rtrs_server_address(server.server, 1, second, sizeof(second)) == 0);
  CHECK(rtrs_server_address(server.server, 2, second, sizeof(second)) == ENOENT);
  CHECK(rtrs_server_address(server.server, 0, second, 5) == ERANGE);
  TestClient client{server};
  rtrs_error error{};
  CHECK(rtrs_add_path(client.client, first, &error) == EEXIST);
  CHECK(rtrs_add_path(client.client, "no port:", &error) == EINVAL);
  CHECK(rtrs_add_path(client.client, second, &error) == 0);
  rtrs_path paths[3]{};
  for (rtrs_path& path : paths) path.size = sizeof(path);
  REQUIRE(rtrs_client_paths(client.client, paths, 3) == 2);
  CHECK(paths[0].address == std::string{first});
  CHECK(paths[0].connected == 1);
  CHECK(paths[1].address == std::string{second});
  CHECK(client.call("m") == 0);
  // The path that takes the place of the first has to have led to the server.
  while (paths[1].connected == 0) REQUIRE(rtrs_client_paths(client.client, paths, 3) == 2);
  CHECK(rtrs_remove_path(client.client, first, &error) == 0);
  CHECK(rtrs_remove_path(client.client, first, &error) == ENOENT);
  CHECK(client.call("m") == 0);
  CHECK(rtrs_set_policy(client.client, "round-robin") == 0);
  CHECK(rtrs_set_policy(client.client, "any") == EINVAL);
  rtrs_limits limits{};
  limits.size = sizeof(limits);
  rtrs_client_limits(client.client, &limits);
  CHECK(limits.queue_depth == 256);
  CHECK(limits.max_io_size == 256 * 1024);
}

TEST_CASE("a line of the log is one line, whatever the handler throws") {
  std::mutex mutex;
  std::string lines;
  std::pair<std::mutex*, std::string*> log{&mutex, &lines};
  rtrs_server_ops ops{};
  ops.size = sizeof(ops);
  ops.request = [](void*, const rtrs_incoming* incoming) {
    rtrs_finish(incoming->request, EIO, nullptr, 0);
    throw std::runtime_error("boom\x1B[2J\nforged line");
  };
  rtrs_server_options options{};
  options.size = sizeof(options);
  options.log_context = &log;
  options.log = [](void* context, rtrs_log_level, const char* line) {
    const auto& [guard, all] = *static_cast<std::pair<std::mutex*, std::string*>*>(context);
    const std::lock_guard lock{*guard};
    *all += line;
  };
  rtrs_error error{};
  rtrs_server* const server =
      rtrs_listen("rtrs+tcp://127.0.0.1:0", &ops, nullptr, &options, &error);
  REQUIRE(server != nullptr);
  const auto uri = "rtrs+tcp://127.0.0.1:" + std::to_string(rtrs_server_port(server));
  rtrs_client* const client = rtrs_connect(uri.c_str(), nullptr, &error);
  REQUIRE(client != nullptr);
  CHECK(rtrs_call(client, "m", 1, nullptr, 0, nullptr, 0, nullptr, 0) == EIO);
  rtrs_disconnect(client);
  CHECK(rtrs_server_close(server, 5000) == 0);
  CHECK(lines.find("boom\\x1b[2J\\x0aforged line") != std::string::npos);
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

}  // namespace
}  // namespace rtrs::library::interface_test
