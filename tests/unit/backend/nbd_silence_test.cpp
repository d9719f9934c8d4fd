// SPDX-License-Identifier: BSD-3-Clause
// NBD servers that hold requests, and connections to them that are cut meanwhile.
#include <doctest/doctest.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bridge/backend/nbd.hpp"
#include "tests/unit/backend/bench.hpp"
#include "tests/unit/backend/nbd_server.hpp"

namespace nbd_silence_test {

using namespace rnbd;
using namespace rnbd::test;
using namespace std::chrono_literals;

namespace {

/// False, with the reason, where there is no nbdkit.
bool can_run() {
  const bool can = NbdServer::installed();
  if (!can) MESSAGE("skipped: nbdkit is not installed");
  return can;
}

/// In a script of a World: the file that says that the server was asked for something.
constexpr std::string_view kAsked = "ASKED";

/// A server of which a test says what it does, and what is told of it.
struct World {
  explicit World(std::vector<std::string> arguments, std::chrono::nanoseconds patience = 60s) {
    std::vector<std::string> all{"eval", "get_size=echo 1048576", "can_write=exit 0",
                                 "can_flush=exit 0"};
    for (std::string& argument : arguments) {
      if (const auto at = argument.find(kAsked); at != argument.npos)
        argument.replace(at, kAsked.size(), asked);
      all.push_back(std::move(argument));
    }
    server = std::make_unique<NbdServer>(socket, all);
    auto opened = open_patient_nbd(server->uri(),
                                   {.log =
                                        [this](rtrs::LogLevel, const auto& line) {
                                          const std::lock_guard lock{mutex};
                                          log.push_back(line);
                                        }},
                                   patience);
    REQUIRE(opened.has_value());
    backend = std::move(*opened);
    queue = backend->open_queue(&reactor);
  }

  bool told(const std::string& part) {
    const std::lock_guard lock{mutex};
    for (const std::string& line : log) {
      if (line.find(part) != std::string::npos) return true;
    }
    return false;
  }

  void start(BackendRequest& request, BackendOperation operation) {
    request.operation = operation;
    request.length = data.size();
    request.data = data.data();
    request.context = this;
    request.done = [](BackendRequest& finished, int error) {
      auto& world = *static_cast<World*>(finished.context);
      world.errors.push_back(error);
      if (--world.running == 0) world.reactor.stop();
    };
    ++running;
    queue->submit(request);
  }
  /// The errors in the order in which the requests ended.
  std::vector<int> wait() {
    reactor.io().restart();
    if (running > 0) reactor.run();
    return std::exchange(errors, {});
  }
  int run(BackendOperation operation) {
    BackendRequest request;
    start(request, operation);
    return wait().at(0);
  }
  /// Kills the server when it has been asked for something, while `wait()` waits.
  std::thread kill_when_asked() {
    return std::thread{[this] {
      while (!std::filesystem::exists(asked)) std::this_thread::sleep_for(1ms);
      server->kill();
    }};
  }

  TemporaryFolder folder;
  std::string socket = folder.path() + "/socket";
  std::string asked = folder.path() + "/asked";  ///< a file that `kAsked` in a script makes
  std::unique_ptr<NbdServer> server;
  std::mutex mutex;
  std::vector<std::string> log;
  std::unique_ptr<Backend> backend;
  rtrs::Reactor reactor{0};
  Bytes data = pattern(4096, 1);
  unsigned running = 0;
  std::vector<int> errors;
  std::unique_ptr<BackendQueue> queue;
};

constexpr char kTakesLong[] = "pwrite=sleep 1; cat > /dev/null";

}  // namespace

TEST_CASE(
    "nbd silence: a change that the server holds is waited for, and so is what came with it") {
  if (!can_run()) return;
  World world{{kTakesLong, "pread=head -c $3 /dev/zero"}, 100ms};
  BackendRequest change, flush;
  world.start(change, BackendOperation::write);
  world.start(flush, BackendOperation::flush);
  CHECK(world.wait() == std::vector{0, 0});
  CHECK(world.told("has changes under way (1)"));
  const std::lock_guard lock{world.mutex};
  CHECK(world.log.size() <= 5);  // after 100, 200, 400 and 800 ms, and when it answers again
}

TEST_CASE("nbd silence: a server that holds only what changes nothing is given up") {
  if (!can_run()) return;
  World world{{"pwrite=cat > /dev/null", "pread=sleep 3; head -c $3 /dev/zero"}, 100ms};
  CHECK(world.run(BackendOperation::write) == 0);
  CHECK(world.run(BackendOperation::read) == EIO);
  CHECK(world.told("no reply for"));
  CHECK(world.queue->broken());
  world.queue = world.backend->open_queue(&world.reactor);
  CHECK(world.run(BackendOperation::write) == 0);
}

TEST_CASE(
    "nbd silence: after a connection that was cut with changes under way nothing is changed") {
  if (!can_run()) return;
  World world{{"pwrite=touch ASKED; sleep 5", "pread=exit 1"}};
  BackendRequest change;
  world.start(change, BackendOperation::write);
  auto killer = world.kill_when_asked();
  CHECK(world.wait() == std::vector{EIO});
  killer.join();
  CHECK(world.told("it had changes under way (1)"));
  world.server.reset();  // it unlinks the socket
  world.server =
      std::make_unique<NbdServer>(world.socket, std::vector<std::string>{"memory", "1M"});
  world.queue = world.backend->open_queue(&world.reactor);
  for (const auto operation :
       {BackendOperation::write, BackendOperation::discard, BackendOperation::write_zeroes}) {
    CHECK(world.run(operation) == EIO);
  }
  CHECK(world.run(BackendOperation::read) == 0);
  CHECK(world.run(BackendOperation::flush) == 0);
}

TEST_CASE("nbd silence: after one that was cut with nothing but reads under way it goes on") {
  if (!can_run()) return;
  World world{{"pwrite=cat > /dev/null", "pread=touch ASKED; sleep 5"}};
  CHECK(world.run(BackendOperation::write) == 0);
  BackendRequest read;
  world.start(read, BackendOperation::read);
  auto killer = world.kill_when_asked();
  CHECK(world.wait() == std::vector{EIO});
  killer.join();
  // A request that comes before anybody has connected anew was never sent.
  CHECK(world.run(BackendOperation::write) == EIO);
  world.server.reset();  // it unlinks the socket
  world.server =
      std::make_unique<NbdServer>(world.socket, std::vector<std::string>{"memory", "1M"});
  world.queue = world.backend->open_queue(&world.reactor);
  CHECK(world.run(BackendOperation::write) == 0);
  CHECK(world.told("open it anew"));
}

}  // namespace nbd_silence_test
