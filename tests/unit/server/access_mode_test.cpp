// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "bridge/protocol/printable.hpp"
#include "tests/unit/server/fixture.hpp"

namespace access_mode_test {

using namespace rnbd;
using namespace rnbd::test;
using wire::AccessMode;

namespace {

constexpr AccessMode kRo = AccessMode::read_only, kRw = AccessMode::read_write,
                     kMigration = AccessMode::migration;

}  // namespace

TEST_CASE("access modes: who may open after whom") {
  struct {
    std::vector<AccessMode> before;
    AccessMode mode;
    int error;
  } const rows[] = {
      {{}, kRo, 0},
      {{}, kRw, 0},
      {{}, kMigration, 0},
      {{kRo}, kRo, 0},
      {{kRo}, kRw, 0},
      {{kRo}, kMigration, 0},
      {{kRw}, kRo, 0},
      {{kRw}, kRw, EPERM},
      {{kRw}, kMigration, 0},
      {{kMigration}, kRo, 0},
      {{kMigration}, kRw, EPERM},
      {{kMigration}, kMigration, 0},
      {{kMigration, kMigration}, kMigration, EPERM},
      {{kMigration, kMigration}, kRo, 0},
      {{kRw, kMigration}, kMigration, EPERM},
      {{kRw, kMigration}, kRw, EPERM},
      {{kRo, kRo, kRw}, kMigration, 0},
  };
  for (const auto& row : rows) {
    World world;
    std::vector<std::unique_ptr<BlockSession>> sessions;
    for (const AccessMode mode : row.before) {
      sessions.push_back(world.make_session("before" + std::to_string(sessions.size())));
      REQUIRE(world.open(*sessions.back(), "disk", mode).error == 0);
    }
    CAPTURE(row.before.size());
    CAPTURE(wire::to_string(row.mode));
    CHECK(world.open(world.session(), "disk", row.mode).error == row.error);
  }
}

TEST_CASE("access modes: who comes back takes nothing from an idle session") {
  World world;
  auto other = world.make_session("other");
  REQUIRE(world.open(*other, "disk", kRw).error == 0);
  world.services.sessions = &world.services;
  world.services.on_reclaim = [](rtrs::Reactor*, const WriterCount*, const std::string&,
                                 std::function<void()>) { FAIL("it asks for it"); };
  wire::NumberedOpen message{wire::encode_open("disk", kRw), {1, 1}};
  message.open.flags = wire::kOpenAgain;
  const Call& call = world.send(world.session(), message, true, room(sizeof(wire::OpenResponse)));
  CHECK(call.error == EPERM);
}

TEST_CASE("access modes: who finds another writer asks for what idle sessions hold, once") {
  World world{{.extensions = false}};
  auto other = world.make_session("other");
  auto third = world.make_session("third");
  REQUIRE(world.open(*other, "disk", kRw).error == 0);
  const WriterCount* asked = nullptr;
  unsigned times = 0;
  std::function<void()> go_on;
  std::string reason;
  world.services.sessions = &world.services;
  world.services.on_reclaim = [&](rtrs::Reactor*, const WriterCount* storage,
                                  const std::string& why, std::function<void()> then) {
    asked = storage;
    reason = why;
    ++times;
    go_on = std::move(then);
  };
  Call& call = world.open(world.session(), "disk", kRw);
  CHECK(call.finished == 0);
  CHECK(times == 1);
  const SessionFacts& facts = world.session().facts();
  CHECK(reason ==
        "'" + facts.name + "' (" + facts.peer + ") wants to write to 'disk', which it has open");
  CHECK(other->writes_to(asked));
  CHECK_FALSE(third->writes_to(asked));
  SUBCASE("somebody was idle") {
    other.reset();
    go_on();
    CHECK(call.error == 0);
    CHECK(world.session().writes_to(asked));
  }
  SUBCASE("nobody was") {
    go_on();
    CHECK(call.error == EPERM);
  }
  CHECK(call.finished == 1);
  CHECK(times == 1);
  CHECK(world.open(*third, "disk", kRo).error == 0);
  CHECK_FALSE(third->writes_to(asked));
  CHECK(times == 1);
}

TEST_CASE("access modes: who is refused is told who writes, and no longer when he does not") {
  World world;
  auto first = world.make_session("first\x1b[2J");
  auto second = world.make_session("second");
  const auto told = [&](const std::string& text) {
    return std::ranges::any_of(world.log, [&](const std::string& line) {
      return line.find("refused") != std::string::npos && line.find(text) != std::string::npos;
    });
  };
  REQUIRE(world.open(*first, "disk", kMigration).error == 0);
  REQUIRE(world.open(*second, "disk", kMigration).error == 0);
  CHECK(world.open(world.session(), "disk", kRw).error == EPERM);
  CHECK(told("'second' (127.0.0.1:40000) write to it"));
  CHECK(told(in_quotes("first\x1b[2J") + " (127.0.0.1:40000), "));
  CHECK_FALSE(told("\x1b"));
  first.reset();
  second.reset();
  REQUIRE(world.open(world.session(), "disk", kRw).error == 0);
  world.log.clear();
  auto third = world.make_session("third");
  CHECK(world.open(*third, "disk", kRw).error == EPERM);
  CHECK(told("'disk': 'client' (127.0.0.1:40000) writes to it"));
}

TEST_CASE("access modes: a close gives the right to write to the next client") {
  World world;
  auto other = world.make_session("other");
  world.open(world.session(), "disk", kRw);
  CHECK(world.open(*other, "disk", kRw).error == EPERM);
  world.close(world.session(), 0);
  CHECK(world.open(*other, "disk", kRw).error == 0);
  CHECK(world.open(world.session(), "disk", kRw).error == EPERM);
}

TEST_CASE("access modes: a session that ends gives its rights back, a reader's end gives none") {
  World world;
  auto reader = world.make_session("reader");
  auto other = world.make_session("other");
  world.open(world.session(), "disk", kRw);
  world.open(*reader, "disk", kRo);
  reader.reset();
  CHECK(world.open(*other, "disk", kRw).error == EPERM);
  world.end_session();
  CHECK(world.open(*other, "disk", kRw).error == 0);
}

TEST_CASE("access modes: a read-only export cannot be opened for writing") {
  World world;
  world.add("frozen", 4096, true);
  CHECK(world.open(world.session(), "frozen", kRw).error == EROFS);
  CHECK(world.open(world.session(), "frozen", kMigration).error == EROFS);
  CHECK(world.open(world.session(), "frozen", kRo).error == 0);
  CHECK(world.io(world.session(), 1, 0, 512, false, 512).error == EROFS);
}

TEST_CASE("access modes: both writers of a migration may write, a reader beside them may not") {
  World world;
  auto target = world.make_session("target");
  auto reader = world.make_session("reader");
  world.open(world.session(), "disk", kRw);
  world.open(*target, "disk", kMigration);
  world.open(*reader, "disk", kRo);
  CHECK(world.io(world.session(), 1, 0, 512, false, 512).error == 0);
  CHECK(world.io(*target, 1, 0, 512, false, 512).error == 0);
  CHECK(world.io(*reader, 1, 0, 512, false, 512).error == EROFS);
}

}  // namespace access_mode_test
