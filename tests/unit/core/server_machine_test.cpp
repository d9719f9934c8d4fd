// SPDX-License-Identifier: BSD-3-Clause
#include <cerrno>
#include <map>

#include "rdma/core/server/machine.hpp"
#include "tests/unit/core/server_bench.hpp"

namespace rtrs::test::server_machine_test {
namespace {

using namespace std::chrono_literals;
using Event = ServerEvent::Kind;
using End = PathEnd::Kind;

constexpr Duration kInterval = 500ms;
constexpr Duration kHandshake = 5s;
constexpr Duration kLinger = 30s;

/// A path whose connections are closed when it is told so, or when the test says.
class TestExecutor final : public ServerPathExecutor {
 public:
  TestExecutor(ServerMachine& m, ServerMachine::Path& p, const Instant& now)
      : machine{m}, place{p}, now_{now} {
    place.executor = this;
    handler = &place.core.add(0, pair);
  }
  bool read() override {
    if (on_read) on_read();
    return true;
  }
  void serves() override { report(Event::serving); }
  void leaves(const PathEnd& why, bool session_over) override {
    end = why.kind;
    over = session_over;
  }
  void close() override {
    if (closes) report(Event::released);
  }
  void look() override {
    ++looks;
    if (on_look) on_look();
  }
  void silence(bool silent) override { is_silent = silent; }
  void send_rest() override { ++rests; }
  bool provide_chunks() override {
    place.core.set_chunks(memory);
    return has_memory;
  }
  void give_back(std::span<const MutableBytes>, std::uint64_t) override {}
  void delay_answer(ServerRequest& request, int error) override {
    machine.session().answer(request, error);
  }
  void discard(std::span<const MutableBytes>) override {}
  void await_memory() override {}
  void wake() override {}
  void gone() override { is_gone = true; }

  void report(Event kind, const PathEnd& why = {}) {
    machine.handle({.kind = kind, .path = place.id, .end = why}, now_);
  }
  bool say_name() {
    machine.begin_reading(place);
    CHECK(handler->on_message(wire::bytes_of(wire::encode_info_request("host")), {}) == nullptr);
    return machine.end_reading(place, /*more=*/false);
  }
  bool hear(std::uint32_t immediate, bool more = false) {
    machine.begin_reading(place);
    CHECK(handler->on_write_with_immediate(immediate, 0) == nullptr);
    return machine.end_reading(place, more);
  }
  /// A write of no data: a message of four bytes.
  bool write(std::uint32_t permit, bool more = false) {
    std::byte* at = memory.data() + permit * kChunk;
    const wire::WriteHeader header{.type = 2, .user_length = 4};
    std::memcpy(at + 4, &header, sizeof(header));
    return hear(encode(wire::RequestImmediate{permit, 4}, 4), more);
  }

  ServerMachine& machine;
  ServerMachine::Path& place;
  std::vector<std::byte> memory = std::vector<std::byte>(4 * std::size_t{kChunk});
  FakeQueuePair pair;
  QueuePairHandler* handler = nullptr;
  std::function<void()> on_read;
  std::function<void()> on_look;
  std::optional<End> end;
  bool over = false;
  bool closes = true;
  bool has_memory = true;
  bool is_gone = false;
  int looks = 0;
  bool is_silent = false;
  int rests = 0;

 private:
  const Instant& now_;
};

/// A server's session, without paths at first.
class World final : public ServerExecutor {
 public:
  explicit World(bool exactly_once = true)
      : machine{options(exactly_once),
                {.handshake_timeout = kHandshake, .linger = kLinger},
                handler,
                *this} {}
  ~World() {
    if (!machine.session().gone()) machine.handle({.kind = Event::end_all}, now);
  }
  Admission::Admitted admit(Admission::PathId, std::string_view) override { return admitted; }
  void let_others_go() override { ++turns; }
  void lingers() override { ++lingered; }
  void forgotten() override { ++forgot; }
  void idle() override { ++idled; }
  void gone() override { is_gone = true; }

  TestExecutor& add() {
    const Admission::PathId id = ++last;
    auto& place = machine.add(id, {.cid_count = 1, .heartbeat_interval = kInterval}, now);
    return paths.try_emplace(id, machine, place, now).first->second;
  }
  TestExecutor& add_serving() {
    TestExecutor& path = add();
    REQUIRE(path.say_name());
    return path;
  }
  void pass(Duration time) {
    now += time;
    machine.handle_timeout(now);
  }
  void go_on() { machine.handle({.kind = Event::others_went}, now); }
  void drain() { machine.handle({.kind = Event::drain}, now); }

  Instant now = Instant{} + 1h;
  Handler handler;
  ServerMachine machine;
  std::map<Admission::PathId, TestExecutor> paths;
  Admission::PathId last = 0;
  Admission::Admitted admitted;
  int turns = 0;
  int lingered = 0;
  int forgot = 0;
  int idled = 0;
  bool is_gone = false;
};

TEST_CASE("machine: a handshake that is late ends its path, and no path that serves") {
  World world;
  TestExecutor& a = world.add();
  TestExecutor& b = world.add_serving();
  CHECK(world.machine.next_deadline() == world.now + kInterval);
  world.pass(kHandshake - 1ms);
  CHECK_FALSE(a.end);
  world.pass(1ms);
  CHECK(a.end == End::late);
  CHECK_FALSE(b.end);
}

TEST_CASE("machine: a silent client's path ends after its misses, one that is heard does not") {
  World world;
  TestExecutor& silent = world.add_serving();
  TestExecutor& heard = world.add_serving();
  for (int i = 0; i < 8; ++i) {
    world.pass(kInterval);
    if (heard.place.open()) heard.hear(wire::kHeartbeat);
  }
  CHECK(silent.end == End::silent);
  CHECK(silent.is_silent);
  CHECK_FALSE(heard.end);
  CHECK_FALSE(heard.is_silent);
  CHECK(world.lingered == 0);
}

TEST_CASE("machine: the older generation of a path ends when the new one serves, and not before") {
  World world;
  TestExecutor& old = world.add_serving();
  TestExecutor& now = world.add();
  world.admitted.replaces = old.place.id;
  SUBCASE("it serves") {
    CHECK(now.say_name());
    CHECK_FALSE(now.end);
  }
  SUBCASE("it has no memory for its chunks") {
    now.has_memory = false;
    now.machine.begin_reading(now.place);
    CHECK(now.handler->on_message(wire::bytes_of(wire::encode_info_request("host")), {}) !=
          nullptr);
    now.machine.end_reading(now.place, false);
    CHECK_FALSE(old.end);
    now.report(Event::ended, {.kind = End::broken, .text = "no memory"});
    CHECK(now.end == End::broken);
  }
  CHECK(old.end == End::replaced);
}

TEST_CASE(
    "machine: what is refused by admission does not end the older generation, nor the lingering") {
  World world;
  world.add_serving().report(Event::end_path, {.kind = End::command});
  CHECK(world.lingered == 1);
  world.admitted = {.why_not = "no", .error = EACCES};
  TestExecutor& refused = world.add();
  CHECK(refused.say_name());
  world.pass(kLinger);
  CHECK(world.forgot == 1);
  CHECK(world.is_gone);
  CHECK(refused.end == End::turned_down);
}

TEST_CASE("machine: a session without paths waits once, until a path is admitted") {
  World world;
  world.add_serving().report(Event::end_path, {.kind = End::command});
  CHECK(world.lingered == 1);
  CHECK(world.idled == 1);
  CHECK(world.machine.next_deadline() == world.now + kLinger);
  world.pass(kLinger / 2);
  TestExecutor& back = world.add_serving();
  world.pass(kLinger / 2);
  CHECK(world.forgot == 0);
  CHECK_FALSE(world.is_gone);
  back.report(Event::ended, {.kind = End::left});
  CHECK(world.lingered == 2);
  world.pass(kLinger);
  CHECK(world.forgot == 1);
  CHECK(world.is_gone);
}

TEST_CASE("machine: a session that still executes when its time is over does not wait anew") {
  World world{};
  TestExecutor& path = world.add_serving();
  std::byte* at = path.memory.data() + 64;
  const wire::ReadHeader header{.type = 3, .user_length = 4, .descriptor_count = 1};
  const wire::Descriptor descriptor{.address = 0xABC000, .key = 55, .length = 64};
  std::memcpy(at + 4, &header, 8);
  std::memcpy(at + 12, &descriptor, 16);
  path.hear(encode(wire::RequestImmediate{0, 68}, 4));
  REQUIRE(world.handler.running.size() == 1);
  path.report(Event::end_path, {.kind = End::command});
  CHECK(world.idled == 0);
  world.pass(kLinger);
  CHECK(world.lingered == 1);
  CHECK(world.machine.next_deadline() == Instant::max());
  CHECK_FALSE(world.is_gone);
  world.handler.finish_oldest();
  CHECK(world.is_gone);
}

TEST_CASE("machine: a path that is fenced while it is read ends behind that") {
  World world;
  TestExecutor& a = world.add_serving();
  TestExecutor& b = world.add_serving();
  world.machine.begin_reading(a.place);
  CHECK(a.handler->on_write_with_immediate(wire::kGoodbye, 0) == nullptr);
  CHECK_FALSE(a.end);
  CHECK(b.end == End::fenced);
  CHECK(b.over);
  CHECK_FALSE(world.machine.end_reading(a.place, false));
  CHECK(a.end == End::fenced);
  CHECK(world.is_gone);
}

TEST_CASE("machine: requests that wait for other paths are judged when all have been read") {
  World world{/*exactly_once=*/false};
  TestExecutor& a = world.add_serving();
  TestExecutor& b = world.add_serving();
  int read = 0;
  b.on_read = [&] { ++read; };
  SUBCASE("at once") {
    CHECK(a.write(0));
    CHECK(read == 1);
  }
  SUBCASE("not while there is more on its own connection") {
    CHECK(a.write(0, /*more=*/true));
    CHECK(read == 0);
    CHECK(world.handler.running.empty());
    CHECK(a.write(1));
    CHECK(world.handler.running.size() == 2);
  }
  SUBCASE("in another turn, once, if they come all the time") {
    std::uint32_t permit = 1;
    b.on_read = [&] {
      if (permit < 4) b.write(permit++);
    };
    CHECK(a.write(0));
    CHECK(world.turns == 1);
    CHECK(world.handler.running.empty());
    world.go_on();
  }
  SUBCASE("in another turn, if a path ends that was waited for") {
    b.closes = false;
    CHECK(a.write(0, /*more=*/true));
    b.report(Event::ended, {.kind = End::left});
    CHECK(world.turns == 1);
    world.go_on();
    b.report(Event::released);
  }
  CHECK_FALSE(world.handler.running.empty());
  while (!world.handler.running.empty()) world.handler.finish_oldest();
}

TEST_CASE("machine: a server that stops takes nobody, and ends a path when all is answered") {
  World world{/*exactly_once=*/false};
  TestExecutor& path = world.add_serving();
  CHECK(path.write(0));
  CHECK(world.machine.takes(7, /*is_new=*/true));
  CHECK(world.machine.takes(path.place.id, false));
  CHECK_FALSE(world.machine.takes(7, false));
  world.drain();
  CHECK_FALSE(world.machine.takes(7, true));
  CHECK(path.rests == 1);
  path.report(Event::flushed);
  CHECK_FALSE(path.end);
  world.handler.finish_oldest();
  path.report(Event::flushed);
  CHECK(path.end == End::drained);
  CHECK(world.is_gone);
}

TEST_CASE("machine: the connections of a path are looked at in silence, and else now and then") {
  World world;
  TestExecutor& path = world.add_serving();
  for (int i = 0; i < 16; ++i) {
    path.hear(wire::kHeartbeat);
    world.pass(kInterval);
  }
  CHECK(path.looks == 2);
  for (int i = 0; i < 3; ++i) world.pass(kInterval);
  CHECK(path.looks == 4);
}

TEST_CASE("machine: what has come from a silent client is read before it is judged") {
  World world;
  TestExecutor& path = world.add_serving();
  SUBCASE("a sign of life") {
    for (int i = 0; i < 5; ++i) world.pass(kInterval);
    REQUIRE_FALSE(path.end);  // yet
    path.on_look = [&] { path.hear(wire::kHeartbeat); };
    world.pass(kInterval);
    CHECK_FALSE(path.end);
    path.on_look = nullptr;
    for (int i = 0; i < 6; ++i) world.pass(kInterval);
    CHECK(path.end == End::silent);
  }
  SUBCASE("its end") {
    path.on_look = [&] { path.report(Event::ended, {.kind = End::left}); };
    for (int i = 0; i < 40; ++i) world.pass(kInterval);
    CHECK(path.end == End::left);
    CHECK(path.looks == 1);
  }
}

TEST_CASE("machine: a path is silent from an interval without arrivals to the next arrival") {
  World world;
  TestExecutor& path = world.add_serving();
  world.add();  // which shakes hands
  const auto pass = [&](bool hears) {
    if (hears) path.hear(wire::kHeartbeat);
    world.pass(kInterval);
    return world.machine.has_silent_path();
  };
  CHECK_FALSE(pass(true));
  CHECK_FALSE(pass(true));
  CHECK(pass(false));
  CHECK(pass(false));
  CHECK_FALSE(pass(true));
  CHECK(pass(false));
  path.report(Event::make_room);
  CHECK_FALSE(world.machine.has_silent_path());
}

TEST_CASE("machine: a path ends once, for the first reason") {
  World world;
  TestExecutor& path = world.add_serving();
  path.closes = false;
  path.report(Event::make_room);
  path.report(Event::ended, {.kind = End::left});
  world.pass(kHandshake);
  CHECK(path.end == End::makes_room);
  CHECK(path.looks == 0);
  CHECK_FALSE(world.machine.takes(path.place.id, false));
  CHECK_FALSE(path.is_gone);
  path.report(Event::released);
  CHECK(path.is_gone);
}

TEST_CASE("machine: what is reported of a path that is forgotten is ignored") {
  World world;
  TestExecutor& path = world.add();
  const Admission::PathId id = path.place.id;
  path.report(Event::ended, {.kind = End::left});
  REQUIRE(path.is_gone);
  world.paths.erase(id);
  world.machine.forget(id);
  CHECK(world.machine.find(id) == nullptr);
  world.machine.handle({.kind = Event::make_room, .path = id}, world.now);
  CHECK(world.machine.next_deadline() == Instant::max());
}

}  // namespace
}  // namespace rtrs::test::server_machine_test
