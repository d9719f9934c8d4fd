// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "rdma/library/include/rtrs.hpp"
#include "tests/unit/library/sanitizer.hpp"

namespace face_test {

// Nothing of the project itself is included here: its names are those of the face.
namespace {

std::string uri_of(const rtrs::Server& server) {
  return "rtrs+tcp://127.0.0.1:" + std::to_string(server.port());
}

rtrs::Server echo_server() {
  auto server = rtrs::Server::listen("rtrs+tcp://127.0.0.1:0",
                                     [](rtrs::Request request) { request.finish(request.data()); });
  REQUIRE(server);
  return std::move(*server);
}

rtrs::Client client_of(const rtrs::Server& server) {
  auto client = rtrs::Client::connect(uri_of(server).c_str());
  REQUIRE(client);
  return std::move(*client);
}

TEST_CASE("an answer of unknown length comes in memory of its own") {
  rtrs::Server server = echo_server();
  rtrs::Client client = client_of(server);
  for (const std::size_t size : {0, 1, 4088, 4089, 300'000, 3'000'000}) {
    CAPTURE(size);
    const std::string out(size, 'a');
    const auto answer = client.ask("m", rtrs::bytes(out), 4'000'000);
    REQUIRE(answer);
    CHECK(answer->text() == out);
  }
  const std::string too_long(rtrs::kMostAnswer + 1, 'a');
  CHECK(client.ask("m", rtrs::bytes(too_long)).code() == EMSGSIZE);
}

TEST_CASE("what was moved away or closed is an error") {
  rtrs::Server server = echo_server();
  rtrs::Client client = client_of(server);
  const rtrs::Client moved = std::move(client);
  CHECK(client.call("m").code() == EINVAL);  // NOLINT: that is the question
  CHECK(client.ask("m").code() == EINVAL);
  CHECK(client.submit("m", {}, {}, [](int, std::size_t) {}) == EINVAL);
  CHECK(client.enqueue("m", {}, {}, [](int, std::size_t) {}) == EINVAL);
  CHECK(client.descriptor() == -1);
  CHECK(client.run_ended() == 0);
  std::string memory(64, '?');
  CHECK(client.register_memory(rtrs::room(memory)).code() == EINVAL);
  CHECK(client.limits().queue_depth == 0);
  CHECK(client.paths().empty());
  CHECK(client.add_path("127.0.0.2").code == EINVAL);
  CHECK(client.remove_path("127.0.0.2").code == EINVAL);
  CHECK(client.set_policy("round-robin") == EINVAL);
  CHECK_FALSE(client.alive());
  client.shutdown();
  CHECK(moved.alive());
  CHECK(server.close(0) == 0);
  CHECK(server.port() == 0);
  CHECK(server.close(0) == 0);
}

TEST_CASE("calls of other threads end when their client is shut down") {
  std::promise<rtrs::Request> came;
  auto server = rtrs::Server::listen(
      "rtrs+tcp://127.0.0.1:0", [&](rtrs::Request request) { came.set_value(std::move(request)); });
  REQUIRE(server);
  std::optional<rtrs::Client> client{client_of(*server)};
  auto call = std::async(std::launch::async, [&] { return client->ask("m").code(); });
  std::optional<rtrs::Request> held{came.get_future().get()};
  client->shutdown();
  CHECK(call.get() == ECANCELED);
  CHECK(client->submit("m", {}, {}, [](int, std::size_t) {}) == ECANCELED);
  client.reset();
}

TEST_CASE("a thread that polls is told of all ends when its client is shut down") {
  std::promise<rtrs::Request> came;
  auto server = rtrs::Server::listen(
      "rtrs+tcp://127.0.0.1:0", [&](rtrs::Request request) { came.set_value(std::move(request)); });
  REQUIRE(server);
  rtrs::Client client = client_of(*server);
  int error = -1;
  REQUIRE(client.enqueue("m", {}, {}, [&](int end, std::size_t) { error = end; }) == 0);
  std::optional<rtrs::Request> held{came.get_future().get()};
  auto polling = std::async(std::launch::async, [&] {
    std::size_t told = 0;
    while (true) {
      pollfd wait{client.descriptor(), POLLIN, 0};
      if (poll(&wait, 1, 10'000) != 1) return told + 1000;
      const std::size_t count = client.run_ended();
      if (count == 0 && !client.alive()) return told;
      told += count;
    }
  });
  client.shutdown();
  CHECK(polling.get() == 1);
  CHECK(error == ECANCELED);
}

TEST_CASE("what is submitted is told of on another thread") {
  rtrs::Server server = echo_server();
  rtrs::Client client = client_of(server);
  const std::string out = "some data";
  std::string in(20, '?');
  std::promise<std::pair<int, std::size_t>> end;
  REQUIRE(client.submit("m", rtrs::bytes(out), rtrs::room(in), [&](int error, std::size_t length) {
    end.set_value({error, length});
  }) == 0);
  const auto [error, length] = end.get_future().get();
  CHECK(error == 0);
  CHECK(in.substr(0, length) == out);
}

TEST_CASE("a child of fork() may destroy what its parent has made, and use none of it" *
          doctest::skip(rtrs::library::kChildrenMayHang)) {
  std::optional<rtrs::Server> server{echo_server()};
  std::optional<rtrs::Client> client{client_of(*server)};
  std::atomic<bool> stop{false};
  // At the time of the fork some of these hold the locks of the client.
  std::vector<std::thread> others;
  for (int i = 0; i < 3; ++i) {
    others.emplace_back([&] {
      while (!stop) {
        std::promise<void> ended;
        if (client->submit("m", {}, {}, [&](int, std::size_t) { ended.set_value(); }) == 0)
          ended.get_future().wait();
      }
    });
  }
  for (int i = 0; i < 30; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      const bool refused = client->call("m").code() == RTRS_FORKED &&
                           client->ask("m").code() == RTRS_FORKED &&
                           client->submit("m", {}, {}, {}) == RTRS_FORKED &&
                           client->enqueue("m", {}, {}, {}) == RTRS_FORKED &&
                           client->run_ended() == 0 && !client->alive();
      client.reset();
      server.reset();
      _exit(refused ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  stop = true;
  for (std::thread& other : others) other.join();
  CHECK(client->call("m"));
}

TEST_CASE("what is enqueued is told of when its owner asks") {
  rtrs::Server server = echo_server();
  rtrs::Client client = client_of(server);
  int told = 0;
  for (int i = 0; i < 100; ++i) {
    REQUIRE(client.enqueue("m", {}, {}, [&](int error, std::size_t) { told += error == 0; }) == 0);
  }
  pollfd polled{client.descriptor(), POLLIN, 0};
  while (told < 100) {
    REQUIRE(poll(&polled, 1, 20'000) == 1);
    client.run_ended();
  }
  CHECK(client.run_ended() == 0);
  const std::string too_long(RTRS_MAX_MESSAGE + 1, 'x');
  CHECK(client.enqueue(too_long, {}, {}, [&](int, std::size_t) { ++told; }) == EMSGSIZE);
  CHECK(told == 100);
}

TEST_CASE("a client may go while something that it enqueued is under way") {
  std::promise<rtrs::Request> begun;
  auto server = rtrs::Server::listen("rtrs+tcp://127.0.0.1:0", [&](rtrs::Request request) {
    begun.set_value(std::move(request));
  });
  REQUIRE(server);
  const auto alive = std::make_shared<int>();
  {
    rtrs::Client client = client_of(*server);
    REQUIRE(client.enqueue("m", {}, {}, [alive](int, std::size_t) {}) == 0);
    begun.get_future().get().finish();
  }
  CHECK(alive.use_count() == 1);
}

TEST_CASE("a request that its handler forgets, or throws in, ends with EIO") {
  std::vector<std::string> log;
  auto options = rtrs::defaults<rtrs::ServerOptions>();
  options.log_context = &log;
  options.log = [](void* context, rtrs_log_level level, const char* line) {
    if (level == RTRS_ERROR) static_cast<std::vector<std::string>*>(context)->emplace_back(line);
  };
  SUBCASE("on the event loop") { options.workers = 0; }
  SUBCASE("on a worker") { options.workers = 1; }
  auto server = rtrs::Server::listen(
      "rtrs+tcp://127.0.0.1:0",
      [](rtrs::Request request) {
        if (request.message() == "throw") request.finish(std::string{"a"}.substr(2));
        if (request.message() == "throw late") {
          request.finish("done");
          throw 1;
        }
        if (request.message() == "twice") request.finish("once");
        if (request.message() == "twice") request.finish("again");
      },
      options);
  REQUIRE(server);
  {
    rtrs::Client client = client_of(*server);
    CHECK(client.ask("forget").code() == EIO);
    CHECK(client.ask("throw").code() == EIO);
    const auto late = client.ask("throw late");
    CHECK((late && late->text() == "done"));
    const auto twice = client.ask("twice");
    CHECK((twice && twice->text() == "once"));
  }
  CHECK(server->close(5000) == 0);
  REQUIRE(log.size() == 2);
  CHECK(log[0].find("substr") != std::string::npos);
  CHECK(log[1].find("threw") != std::string::npos);
}

TEST_CASE("what handlers of events throw stays in the server") {
  rtrs::SessionEvents events;
  events.up = [](rtrs_session*) { throw std::string{"up"}; };
  events.down = [](rtrs_session*) { throw std::string{"down"}; };
  events.paths = [](rtrs_session*, unsigned) { throw std::string{"paths"}; };
  auto server = rtrs::Server::listen(
      "rtrs+tcp://127.0.0.1:0", [](rtrs::Request request) { request.finish("here"); },
      rtrs::defaults<rtrs::ServerOptions>(), std::move(events));
  REQUIRE(server);
  {
    rtrs::Client client = client_of(*server);
    CHECK(client.ask("m"));
  }
  CHECK(server->close(5000) == 0);
}

TEST_CASE("a server hears of sessions, and gives and takes memory as it is") {
  std::string heard;
  rtrs::SessionEvents events;
  events.up = [&](rtrs_session*) { heard += "up "; };
  events.down = [&](rtrs_session*) { heard += "down "; };
  events.paths = [&](rtrs_session*, unsigned paths) { heard += std::to_string(paths) + " "; };
  auto server = rtrs::Server::listen(
      "rtrs+tcp://127.0.0.1:0",
      [](rtrs::Request request) {
        const auto taken = request.take_data();
        std::string answer{reinterpret_cast<const char*>(taken.get()), request.data().size()};
        request.finish_with(std::move(answer));
      },
      rtrs::defaults<rtrs::ServerOptions>(), std::move(events));
  REQUIRE(server);
  {
    rtrs::Client client = client_of(*server);
    const std::string out(client.limits().max_io_size + 1, 'x');
    std::string in(out.size(), '?');
    CHECK(client.call("m", rtrs::bytes(out), rtrs::room(in)));
    CHECK(in == out);
  }
  CHECK(server->close(5000) == 0);
  CHECK(heard == "up 1 0 down ");
}

TEST_CASE("a client's paths are seen and changed") {
  rtrs::Server server = echo_server();
  rtrs::Client client = client_of(server);
  REQUIRE(client.paths().size() == 1);
  const std::string first = client.paths()[0].address;
  CHECK(client.add_path(first.c_str()).code == EEXIST);
  CHECK(client.remove_path(first.c_str()).code == EBUSY);
  CHECK(client.add_path("127.0.0.2:1").code == 0);
  CHECK(client.paths().size() == 2);
  CHECK(client.remove_path("127.0.0.2:1").code == 0);
  CHECK(client.set_policy("round-robin") == 0);
  CHECK(client.set_policy("any") == EINVAL);
}

TEST_CASE("memory is registered as long as somebody holds that") {
  rtrs::Server server = echo_server();
  rtrs::Client client = client_of(server);
  std::string memory(10'000, 'm');
  {
    const auto held = client.register_memory(rtrs::room(memory));
    REQUIRE(held);
    CHECK(client.register_memory(rtrs::room(memory)).code() == EEXIST);
    const auto length = client.call("m", rtrs::bytes(memory), rtrs::room(memory));
    CHECK((length && *length == memory.size()));
  }
  CHECK(client.register_memory(rtrs::room(memory)));
}

TEST_CASE("errors are numbers and sentences") {
  rtrs::Server server = echo_server();
  rtrs::Client client = client_of(server);
  const auto length = client.call(std::string(300, 'x'));
  REQUIRE_FALSE(length);
  CHECK(length.code() == EMSGSIZE);
  CHECK(length.error().text == rtrs_strerror(EMSGSIZE));
  CHECK(length.error().text.find("max_request_size") != std::string::npos);
  const auto nobody = rtrs::Client::connect("nowhere");
  REQUIRE_FALSE(nobody);
  CHECK(nobody.code() == EINVAL);
}

}  // namespace

}  // namespace face_test
