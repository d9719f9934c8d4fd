// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/admission.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/core/admission_fixture.hpp"

namespace rtrs::admission_test {
namespace {

/// A path whose client has finished its handshake, or why it has not.
struct Arrived {
  int error = 0;
  Admission::SessionId session = 0;
  Admission::PathId path = 0;
  bool new_session = false;
  bool new_path = false;
  Admission::PathId replaces = 0;
};

Arrived enter(Admission& admission, const wire::ConnectParameters& parameters) {
  const auto considered = admission.consider(parameters);
  if (considered.error != 0) return {.error = considered.error};
  const std::string name = "host-" + std::to_string(parameters.session_uuid[0]);
  const auto admitted = admission.admit(considered.session, considered.path, name);
  REQUIRE_MESSAGE(admitted.why_not == nullptr, admitted.why_not);
  return {0,
          considered.session,
          considered.path,
          considered.new_session,
          considered.new_path,
          admitted.replaces};
}

TEST_CASE("the connections of a path are let in once each, in any order behind the first") {
  Admission admission{limits()};
  // Left over from an attempt whose session is gone.
  CHECK(admission.consider(request(1, 2)).error == ENXIO);
  const auto first = admission.consider(request(1, 0));
  CHECK(first.error == 0);
  CHECK(first.new_session);
  CHECK(first.new_path);
  CHECK(admission.consider(request(1, 2)).error == 0);
  CHECK(admission.consider(request(1, 2)).error == ECONNRESET);
  const auto last = admission.consider(request(1, 1));
  CHECK(last.error == 0);
  CHECK_FALSE(last.new_session);
  CHECK_FALSE(last.new_path);
  CHECK(last.session == first.session);
  CHECK(last.path == first.path);
}

TEST_CASE("a path that may make no session joins none that is still to be made") {
  Admission admission{limits()};
  auto joins = request(1, 0);
  joins.path_uuid.back() ^= 1;
  joins.first_connection = false;
  const auto makes = admission.consider(request(1, 0), std::nullopt);
  REQUIRE(makes.error == 0);
  CHECK(admission.consider(joins, std::nullopt).error == ENXIO);
  REQUIRE(admission.admit(makes.session, makes.path, "host", "owner").why_not == nullptr);
  const auto joined = admission.consider(joins, std::nullopt);
  REQUIRE(joined.error == 0);
  CHECK(joined.session == makes.session);
  CHECK(admission.admit(joined.session, joined.path, "host", "another").other_user);
  CHECK(admission.admit(joined.session, joined.path, "host", "owner").why_not == nullptr);
}

TEST_CASE("a uuid of zeros is nobody's: whoever has one would share a session with others") {
  Admission admission{limits()};
  for (const std::uint32_t features : {0U, kExactlyOnce}) {
    auto session = request(1, 0, 3, 0, features);
    session.session_uuid = {};
    CHECK(admission.consider(session).error == EINVAL);
    auto path = request(1, 0, 3, 0, features);
    path.path_uuid = {};
    CHECK(admission.consider(path).error == EINVAL);
  }
  CHECK(admission.empty());
  auto nearly = request(1, 0);
  nearly.session_uuid = nearly.path_uuid = {};
  nearly.session_uuid.back() = nearly.path_uuid.back() = 1;
  CHECK(admission.consider(nearly).error == 0);
  // Nor does it join a session that is there.
  auto joins = nearly;
  joins.path_uuid = {};
  CHECK(admission.consider(joins).error == EINVAL);
}

TEST_CASE("a connection that contradicts its path or session is refused") {
  Admission admission{limits()};
  REQUIRE(admission.consider(request(1, 0)).error == 0);
  CHECK(admission.consider(request(1, 1, 4)).error == ECONNRESET);
  CHECK(admission.consider(request(1, 1)).error == 0);
  REQUIRE(enter(admission, request(2, 0)).error == 0);
  CHECK(admission.consider(request(2, 1, 3, 0, kExactlyOnce)).error == ECONNRESET);
  CHECK(admission.consider(request(2, 0, 3, 1, kExactlyOnce)).error == ECONNRESET);
}

TEST_CASE("an attempt that a later one of the same path has overtaken is refused") {
  Admission admission{limits()};
  const auto attempt = [&](std::uint16_t cid, std::uint16_t count) {
    wire::ConnectParameters parameters = request(1, cid, 3, 0, kExactlyOnce);
    parameters.reconnect_count = count;
    return admission.consider(parameters);
  };
  const auto admit = [&](const Admission::Considered& path) {
    return admission.admit(path.session, path.path, "host").why_not == nullptr;
  };
  REQUIRE(admit(attempt(0, 1)));
  REQUIRE(attempt(0, 65535).error == ECONNRESET);
  const auto second = attempt(0, 2);
  const auto third = attempt(0, 3);
  CHECK(attempt(1, 2).path == second.path);
  CHECK(attempt(1, 3).path == third.path);
  CHECK(attempt(1, 4).error == ECONNRESET);
  CHECK(admit(third));
  CHECK_FALSE(admit(second));
  CHECK(attempt(0, 2).error == ECONNRESET);
}

TEST_CASE("unless told otherwise, a Linux client with 1023 CPUs is let in") {
  Admission admission{{.memory_limit = 1000}};
  CHECK(admission.consider(request(1, 0, 1024)).error == 0);
  CHECK(admission.consider(request(2, 0, 1025)).error == EINVAL);
}

TEST_CASE("only the first connection of a session may create it") {
  Admission admission{limits()};
  auto late = request(1, 0);
  late.first_connection = false;
  CHECK(admission.consider(late).error == ENXIO);
  const auto first = admission.consider(request(1, 0));
  REQUIRE(first.error == 0);
  late.cid = 1;
  CHECK(admission.consider(late).error == 0);
  REQUIRE(admission.admit(first.session, first.path, "host").why_not == nullptr);
  late.cid = 0;
  late.path_uuid.fill(77);
  CHECK(admission.consider(late).error == 0);
  late.cid = 1;
  late.path_uuid.fill(78);
  CHECK(admission.consider(late).error == ECONNRESET);
}

TEST_CASE("a session has several paths, up to a limit") {
  Admission admission{limits()};
  const auto first = enter(admission, request(1, 0, 3, 0));
  const auto second = enter(admission, request(1, 0, 2, 1));
  CHECK(second.error == 0);
  CHECK(second.session == first.session);
  CHECK(second.new_path);
  CHECK_FALSE(second.new_session);
  CHECK(second.path != first.path);
  CHECK(enter(admission, request(1, 0, 1, 2)).error == 0);
  CHECK(enter(admission, request(1, 0, 1, 3)).error == ENOMEM);
  CHECK(admission.sessions() == 1);
  admission.close_path(first.session, second.path);
  CHECK(enter(admission, request(1, 0, 1, 3)).error == 0);
}

wire::ConnectParameters once(std::uint8_t session, std::uint16_t cid, std::uint16_t count,
                             std::uint8_t path = 0) {
  return request(session, cid, count, path, kExactlyOnce);
}

TEST_CASE(
    "a path that is there already is replaced when its new generation is admitted, not before") {
  Admission admission{limits()};
  const auto old = enter(admission, once(1, 0, 2));
  SUBCASE("it is open") {
    const auto again = admission.consider(once(1, 0, 2));
    CHECK(again.new_path);
    CHECK(again.makes_room.path == 0);
    CHECK(admission.consider(once(1, 1, 2)).path == again.path);
    CHECK(admission.consider(once(1, 1, 2)).error == ECONNRESET);
    CHECK(admission.memory() == 100);
    CHECK(admission.admit(again.session, again.path, "host-1").replaces == old.path);
    CHECK(admission.memory() == 100);
    admission.close_path(old.session, old.path);
    admission.shrink_path(old.session, old.path, 30);
    CHECK(admission.memory() == 130);
  }
  SUBCASE("it has closed while requests execute in it, and another path lives") {
    REQUIRE(enter(admission, once(1, 0, 1, 1)).error == 0);
    admission.close_path(old.session, old.path);
    CHECK(admission.consider(once(1, 1, 2)).error == ECONNRESET);
    const auto again = enter(admission, once(1, 0, 3));
    CHECK(again.error == 0);
    CHECK(again.replaces == 0);
    CHECK(admission.memory() == 300);
    admission.remove_path(old.session, old.path);
    CHECK(admission.memory() == 200);
  }
  SUBCASE("there is no memory for both, and none is needed") {
    for (std::uint8_t other = 2; other < 5; ++other) {
      for (std::uint8_t path = 0; path < 3; ++path) {
        REQUIRE(enter(admission, request(other, 0, 1, path)).error == 0);
      }
    }
    CHECK(admission.memory() == 1000);
    CHECK(enter(admission, once(1, 0, 2)).replaces == old.path);
    CHECK(admission.memory() == 1000);
  }
}

TEST_CASE("closed paths that still execute cannot be collected") {
  Admission admission{limits()};
  unsigned admitted = 0;
  while (enter(admission, once(1, 0, 1, 0)).error == 0) REQUIRE(++admitted < 100);
  CHECK(admitted == 6);
}

TEST_CASE("whoever has only said hello takes nothing and closes nothing of anybody's") {
  AdmissionLimits few = limits();
  few.max_half_open = 4;
  Admission admission{few};
  const auto honest = enter(admission, once(1, 0, 1));
  SUBCASE("no memory and no session, however many there are") {
    std::vector<Admission::PathId> waiting;
    for (std::uint8_t session = 2; session < 50; ++session) {
      const auto stranger = admission.consider(request(session, 0));
      REQUIRE(stranger.error == 0);
      waiting.push_back(stranger.path);
      const bool full = waiting.size() > few.max_half_open;
      CHECK(stranger.makes_room.path == (full ? waiting[waiting.size() - 5] : 0));
    }
    CHECK(admission.half_open() == few.max_half_open);
    CHECK(admission.sessions() == 1);
    CHECK(admission.memory() == 100);
    CHECK(enter(admission, once(99, 0, 1)).error == 0);
  }
  SUBCASE("nor a session whose uuids it knows") {
    wire::ConnectParameters sniffed = once(1, 0, 9);
    sniffed.cid_count = 2;
    sniffed.reconnect_count = 1000;
    for (int i = 0; i < 20; ++i) CHECK(admission.consider(sniffed).makes_room.path != honest.path);
    CHECK(admission.memory() == 100);
    const auto again = enter(admission, once(1, 0, 1));
    CHECK(again.replaces == honest.path);
  }
  SUBCASE("nor can it make a session what its client has not made it yet") {
    REQUIRE(admission.consider(request(2, 0)).error == 0);
    CHECK(enter(admission, once(2, 0, 1)).new_session);
    CHECK(admission.sessions() == 2);
  }
  SUBCASE("and it keeps no idle session's name") {
    admission.close_path(honest.session, honest.path);
    REQUIRE(admission.consider(once(1, 0, 1)).error == 0);
    admission.set_idle(honest.session);
    const auto other = admission.consider(once(2, 0, 1));
    CHECK(admission.admit(other.session, other.path, "host-1").ends == honest.session);
  }
}

TEST_CASE("of two paths that make the same session in different ways the first one admitted does") {
  Admission admission{limits()};
  const auto plain = admission.consider(request(1, 0));
  const auto other = admission.consider(once(1, 0, 3, 1));
  CHECK(other.new_session);
  CHECK(admission.admit(plain.session, plain.path, "host").why_not == nullptr);
  CHECK(admission.admit(other.session, other.path, "host").why_not != nullptr);
  CHECK(admission.consider(once(1, 0, 3, 1)).error == ECONNRESET);
}

TEST_CASE("what was considered while there was room is not admitted when there is none left") {
  Admission admission{{.path_memory = 100, .memory_limit = 150}};
  const auto first = admission.consider(request(1, 0));
  const auto second = admission.consider(request(2, 0));
  REQUIRE(second.error == 0);
  CHECK(admission.admit(first.session, first.path, "a").why_not == nullptr);
  CHECK(admission.admit(second.session, second.path, "b").why_not != nullptr);
  CHECK(admission.memory() == 100);
}

TEST_CASE("a closed path counts with what it still holds") {
  Admission admission{limits()};
  const auto old = enter(admission, once(1, 0, 1));
  REQUIRE(enter(admission, once(2, 0, 1)).error == 0);
  admission.close_path(old.session, old.path);
  CHECK(admission.memory() == 200);
  admission.shrink_path(old.session, old.path, 30);
  CHECK(admission.memory() == 130);
  CHECK(enter(admission, once(1, 0, 1)).error == 0);
  CHECK(admission.memory() == 230);
  admission.remove_path(old.session, old.path);
  CHECK(admission.memory() == 200);
  admission.shrink_path(old.session, old.path, 30);  // told late
  CHECK(admission.memory() == 200);
}

/// How often the path comes back while what it had under way hangs, up to a number.
unsigned returns(Admission& admission, std::uint8_t session, std::uint64_t held, unsigned times) {
  for (unsigned i = 0; i < times; ++i) {
    const auto decision = enter(admission, once(session, 0, 1));
    if (decision.error != 0) return i;
    admission.close_path(decision.session, decision.path);
    admission.shrink_path(decision.session, decision.path, held);
  }
  return times;
}

TEST_CASE("what hangs of one session's lost paths leaves three quarters of the memory to others") {
  SUBCASE("a path with all of its requests under way") {
    Admission admission{limits()};
    CHECK(returns(admission, 1, 100, 100) == 3);
    CHECK(enter(admission, once(1, 0, 1)).error == ENOMEM);
    CHECK(enter(admission, once(2, 0, 1)).error == 0);
  }
  SUBCASE("one with few: others notice nothing of it") {
    Admission admission{limits()};
    CHECK(returns(admission, 1, 10, 6) == 6);
    CHECK(admission.memory() == 60);
  }
  SUBCASE("where a quarter is less than a path, its client may come back once") {
    Admission admission{{.path_memory = 100, .memory_limit = 300, .features = kExactlyOnce}};
    CHECK(returns(admission, 1, 100, 100) == 2);
    CHECK(enter(admission, once(2, 0, 1)).error == 0);
  }
}

TEST_CASE(
    "a path of a peer without generations comes back when its older generation has ended, not "
    "before") {
  Admission admission{limits()};
  const auto old = enter(admission, request(1, 0, 1));
  REQUIRE(enter(admission, request(1, 0, 1, 1)).error == 0);
  CHECK(enter(admission, request(1, 0, 1)).error == ECONNRESET);
  admission.close_path(old.session, old.path);
  CHECK(enter(admission, request(1, 0, 1)).error == ECONNRESET);
  admission.remove_path(old.session, old.path);
  CHECK(enter(admission, request(1, 0, 1)).new_path);
}

TEST_CASE("sessions, memory and connections have limits, and come back when a session goes") {
  SUBCASE("sessions") {
    Admission admission{{.max_sessions = 2, .memory_limit = 1000}};
    CHECK(enter(admission, request(1, 0)).error == 0);
    const auto second = enter(admission, request(2, 0));
    CHECK(second.error == 0);
    CHECK(enter(admission, request(3, 0)).error == ENOMEM);
    admission.remove(second.session);
    CHECK(enter(admission, request(3, 0)).error == 0);
  }
  SUBCASE("memory, which is a path's") {
    Admission admission{{.path_memory = 100, .memory_limit = 350}};
    CHECK(enter(admission, request(1, 0)).error == 0);
    CHECK(enter(admission, request(1, 0, 3, 1)).error == 0);
    CHECK(enter(admission, request(2, 0)).error == 0);
    CHECK(enter(admission, request(3, 0)).error == ENOMEM);
    CHECK(enter(admission, request(2, 0, 3, 1)).error == ENOMEM);
    CHECK(admission.memory() == 300);
    admission.remove(1);
    CHECK(admission.memory() == 100);
  }
  SUBCASE("connections of one path") {
    Admission admission{limits()};
    CHECK(enter(admission, request(1, 0, 9)).error == EINVAL);
    CHECK(admission.empty());
    CHECK(enter(admission, request(1, 0, 8)).error == 0);
    CHECK(enter(admission, request(1, 0, 9, 1)).error == EINVAL);
  }
}

wire::ConnectParameters learning(std::uint8_t session, std::uint8_t path = 0) {
  return request(session, 0, 1, path, kExactlyOnce | wire::kFeatureAccessNotice);
}

/// The path goes that was spared; storage still holds so much of it, or it is gone.
void close_spared(Admission& admission, Admission::Place spared, std::uint64_t held = 0) {
  admission.close_path(spared.session, spared.path);
  held > 0 ? admission.shrink_path(spared.session, spared.path, held)
           : admission.remove_path(spared.session, spared.path);
}

/// Clients that learn of access states, at a server with memory for five paths.
struct Short {
  Admission admission{[] {
    AdmissionLimits few = limits();
    few.max_sessions = 9;
    few.memory_limit = 500;
    few.features |= wire::kFeatureAccessNotice;
    return few;
  }()};

  struct Came {
    int error = 0;
    Admission::Place place{};
    Admission::PathId replaces = 0;
    Admission::Place spares{};
  };
  Came come(const wire::ConnectParameters& parameters, unsigned entrance = 0,
            std::string_view user = "") {
    const auto considered = admission.consider(parameters, user, "", entrance);
    if (considered.error != 0) return {.error = considered.error};
    const std::string name(1, static_cast<char>('a' + parameters.session_uuid[0]));
    const auto admitted = admission.admit(considered.session, considered.path, name);
    REQUIRE(admitted.why_not == nullptr);
    return {.place = {considered.session, considered.path},
            .replaces = admitted.replaces,
            .spares = admitted.spares.empty() ? Admission::Place{} : admitted.spares.front()};
  }
  void set_inaccessible(std::initializer_list<unsigned> entrances) {
    for (const unsigned one : entrances) admission.set_access(one, wire::PathAccess::inaccessible);
  }

  Came first = come(learning(1));
  Came second = come(learning(1, 1), 1);
  Came third = come(learning(1, 2), 2);
  Came other_first = come(learning(2));
  Came other_second = come(learning(2, 1), 1);
};

TEST_CASE_FIXTURE(Short,
                  "where memory is short, a session gets a path before others get a second") {
  REQUIRE(admission.memory() == 500);
  SUBCASE("the newest one of who has most goes, and the memory is never more than the limit") {
    const Came newcomer = come(learning(3));
    CHECK(newcomer.spares.path == third.place.path);
    CHECK(admission.memory() == 500);
    close_spared(admission, newcomer.spares);
    CHECK(admission.memory() == 500);
    CHECK(come(learning(1, 2)).error == ENOMEM);
    CHECK(come(learning(3, 1)).error == ENOMEM);
    const Came next = come(learning(4));
    CHECK(next.spares.path == other_second.place.path);
    close_spared(admission, next.spares);
    const Came last = come(learning(5));
    CHECK(last.spares.path == second.place.path);
    close_spared(admission, last.spares);
    CHECK(come(learning(6)).error == ENOMEM);  // each has one
  }
  SUBCASE("one that carries nothing goes first, and the last that carries something never") {
    set_inaccessible({0, 1});
    const Came newcomer = come(learning(3), 2);
    CHECK(newcomer.spares.path == second.place.path);
    close_spared(admission, newcomer.spares);
    const Came next = come(learning(4), 2);
    CHECK(next.spares.session == other_first.place.session);
    close_spared(admission, next.spares);
    const Came last = come(learning(5), 2);
    CHECK(last.spares.path == first.place.path);
    close_spared(admission, last.spares);
    CHECK(come(learning(6), 2).error == ENOMEM);
  }
  SUBCASE("a path that is not preferred goes before one that is") {
    admission.set_access(1, wire::PathAccess::non_optimized);
    CHECK(come(learning(3)).spares.path == second.place.path);
  }
  SUBCASE("silence is no way to carry anything") {
    admission.set_silent(first.place.session, first.place.path, true);
    admission.set_silent(third.place.session, third.place.path, true);
    const Came newcomer = come(learning(3));
    CHECK(newcomer.spares.path == third.place.path);
    close_spared(admission, newcomer.spares);
    admission.set_silent(first.place.session, first.place.path, false);
    CHECK(come(learning(4)).spares.path == other_second.place.path);
  }
  SUBCASE("nor does a path carry anything that its client connects anew") {
    auto again = learning(1);
    again.reconnect_count = 1;
    admission.remove_path(third.place.session, third.place.path);
    REQUIRE(come(learning(3)).spares.path == 0);
    REQUIRE(admission.consider(again).error == 0);
    CHECK(come(learning(4)).spares.path == first.place.path);
  }
  SUBCASE("an attempt to connect it anew that made room for others counts no longer") {
    auto again = learning(1);
    again.reconnect_count = 1;
    admission.remove_path(third.place.session, third.place.path);
    REQUIRE(come(learning(3)).spares.path == 0);
    REQUIRE(admission.consider(again).error == 0);
    REQUIRE(admission.turn_away_oldest().session == first.place.session);
    CHECK(come(learning(4)).spares.path == other_second.place.path);
  }
  SUBCASE("a client that knows nothing of access uses all of its paths") {
    admission.remove_path(other_second.place.session, other_second.place.path);
    const Came plain = come(request(3, 0, 1, 0, kExactlyOnce));
    admission.remove_path(third.place.session, third.place.path);
    REQUIRE(come(request(3, 0, 1, 1, kExactlyOnce), 1).error == 0);
    set_inaccessible({0, 1});
    admission.remove_path(first.place.session, first.place.path);
    REQUIRE(come(learning(4), 2).spares.path == 0);
    CHECK(come(learning(5), 2).spares.session == plain.place.session);
  }
  SUBCASE("a path that carries something takes the room of its own session's that carry nothing") {
    const Came only = come(learning(3));
    close_spared(admission, only.spares);
    set_inaccessible({0});
    CHECK(come(learning(3, 1), 1).spares.path == only.place.path);
  }
  SUBCASE("one that will carry nothing takes the room of nobody, if its session has another") {
    set_inaccessible({3});
    const Came useless = come(learning(3), 3);
    CHECK(useless.spares.path == third.place.path);
    close_spared(admission, useless.spares);
    CHECK(come(learning(3, 1), 3).error == ENOMEM);
  }
  SUBCASE("a path that returns needs only what its older generation had") {
    const Came again = come(learning(2));
    CHECK(again.replaces == other_first.place.path);
    CHECK(again.spares.path == 0);
    CHECK(admission.memory() == 500);
  }
  SUBCASE(
      "nothing goes while storage hangs, or while what went is not closed: it might free nothing") {
    const Came newcomer = come(learning(3));
    CHECK(come(learning(4)).error == 0);
    CHECK(come(learning(5)).error == ENOMEM);
    close_spared(admission, newcomer.spares, 100);
    CHECK(admission.memory() == 600);
    CHECK(come(learning(5)).error == ENOMEM);
  }
}

TEST_CASE_FIXTURE(Short, "a client that proves no name takes nothing from one that does") {
  admission.remove_path(first.place.session, first.place.path);
  admission.remove_path(second.place.session, second.place.path);
  admission.remove_path(other_second.place.session, other_second.place.path);
  for (std::uint8_t path = 0; path < 3; ++path)
    REQUIRE(come(learning(3, path), 0, "known").error == 0);
  CHECK(come(learning(4)).error == ENOMEM);
  CHECK(come(learning(5), 0, "known").spares.session != 0);
}

TEST_CASE("a user whose memory is used up spares a path of his own") {
  AdmissionLimits few = limits();
  few.memory_limit_per_user = 200;
  Admission admission{few};
  const auto come = [&](const wire::ConnectParameters& parameters, std::string_view user) {
    const auto considered = admission.consider(parameters, user);
    if (considered.error != 0) return Admission::Admitted{.error = considered.error};
    const std::string name(1, static_cast<char>('a' + parameters.session_uuid[0]));
    return admission.admit(considered.session, considered.path, name);
  };
  REQUIRE(come(once(1, 0, 1), "one").why_not == nullptr);
  REQUIRE(come(once(1, 0, 1, 1), "one").why_not == nullptr);
  REQUIRE(come(once(2, 0, 1), "two").why_not == nullptr);
  REQUIRE(come(once(2, 0, 1, 1), "two").why_not == nullptr);
  REQUIRE(come(once(2, 0, 1, 2), "two").error == ENOMEM);
  CHECK(come(once(3, 0, 1), "one").spares.at(0).session == 1);
  CHECK(come(once(3, 0, 1, 1), "one").error == ENOMEM);
  CHECK(come(once(4, 0, 1), "one").error == ENOMEM);
}

TEST_CASE("as many paths go as one that is needed takes, or none") {
  AdmissionLimits few = limits();
  few.max_sessions = 9;
  few.max_paths_per_session = 8;
  few.path_floor = 20;
  few.memory_limit = 160;
  MemoryAccount account{few.memory_limit};
  few.account = &account;
  Admission admission{few};
  const auto come = [&](std::uint8_t session, std::uint8_t path, bool borrows) {
    const auto parameters = once(session, 0, 1, path);
    const auto considered = admission.consider(parameters, "", "", 0, borrows);
    if (considered.error != 0) return Admission::Admitted{.error = considered.error};
    const std::string name(1, static_cast<char>('a' + session));
    return admission.admit(considered.session, considered.path, name);
  };
  for (std::uint8_t path = 0; path < 4; ++path) REQUIRE(come(1, path, true).error == 0);
  SUBCASE("enough") {
    for (std::uint8_t path = 0; path < 4; ++path) REQUIRE(come(2, path, true).error == 0);
    REQUIRE(account.floors() == 160);
    const auto large = come(3, 0, false);
    CHECK(large.error == 0);
    CHECK(large.spares.size() == 5);
    CHECK(account.floors() == 160);
    CHECK(admission.memory() == 160);
    for (const Admission::Place spared : large.spares) {
      admission.close_path(spared.session, spared.path);
      admission.remove_path(spared.session, spared.path);
    }
    CHECK(admission.memory() == 160);
    CHECK(come(4, 0, true).spares.size() == 1);
  }
  SUBCASE("too few") {
    for (std::uint8_t session = 2; session < 6; ++session)
      REQUIRE(come(session, 0, true).error == 0);
    CHECK(come(6, 0, false).error == ENOMEM);
    CHECK(account.floors() == 160);
    CHECK(come(7, 0, true).spares.size() == 1);  // of the four
  }
}

TEST_CASE("a session without paths is over, unless it lingers") {
  Admission admission{limits()};
  SUBCASE("a peer without the extension") {
    const auto first = enter(admission, request(1, 0));
    admission.close_path(first.session, first.path);
    CHECK(enter(admission, request(1, 1)).error == ECONNRESET);
    CHECK(enter(admission, request(1, 0)).error == ECONNRESET);
    admission.remove(first.session);
    const auto again = enter(admission, request(1, 0));
    CHECK(again.error == 0);
    CHECK(again.session != first.session);
  }
  SUBCASE("one with it") {
    const auto first = enter(admission, request(1, 0, 3, 0, kExactlyOnce));
    admission.close_path(first.session, first.path);
    auto back = request(1, 0, 3, 0, kExactlyOnce);
    back.first_connection = false;
    const auto again = enter(admission, back);
    CHECK(again.error == 0);
    CHECK(again.session == first.session);
    CHECK(again.new_path);
    admission.close(first.session);
    CHECK(enter(admission, request(1, 0, 3, 1, kExactlyOnce)).error == ECONNRESET);
  }
}

TEST_CASE("a session name belongs to one session at a time") {
  Admission admission{limits()};
  const auto first = admission.consider(request(1, 0));
  const auto first_again = admission.consider(request(1, 0, 3, 1));
  const auto second = admission.consider(request(2, 0));
  const auto admit = [&](const Admission::Considered& path, const char* name) {
    return admission.admit(path.session, path.path, name).why_not == nullptr;
  };
  CHECK(admit(first, "host-a"));
  CHECK(admit(first_again, "host-a"));
  CHECK_FALSE(admit(second, "host-a"));
  CHECK(admit(second, "host-b"));
  admission.remove(first.session);
  CHECK(admit(admission.consider(request(3, 0)), "host-a"));
}

TEST_CASE("an idle session yields its name and ends; one that was joined again does not") {
  Admission admission{limits()};
  const auto first = enter(admission, once(1, 0, 3));
  const auto second = admission.consider(request(2, 0));
  const auto claim = [&] { return admission.admit(second.session, second.path, "host-1"); };
  admission.close_path(first.session, first.path);
  CHECK(claim().why_not != nullptr);  // something executes
  admission.set_idle(first.session);
  SUBCASE("nobody joined") {
    CHECK(claim().ends == first.session);
    CHECK(admission.consider(once(1, 0, 3)).error == ECONNRESET);
  }
  SUBCASE("joined") {
    REQUIRE(enter(admission, once(1, 0, 3)).error == 0);
    CHECK(claim().why_not != nullptr);
    admission.set_idle(first.session);  // told late
    CHECK(claim().why_not != nullptr);
  }
}

TEST_CASE("a memory path joins a session that has a path for requests, and takes no memory") {
  constexpr std::uint32_t kMemory = kExactlyOnce | wire::kFeatureMemoryPaths;
  AdmissionLimits offered = limits();
  offered.features = kMemory;
  const auto memory_path = [](std::uint16_t cid) {
    auto parameters = request(1, cid, 2, 1, kMemory);
    parameters.kind = wire::PathKind::memory;
    return parameters;
  };
  Admission admission{offered};
  CHECK(admission.consider(memory_path(0)).error == ENXIO);
  const auto first = enter(admission, request(1, 0, 1, 0, kMemory));

  SUBCASE("it comes in, with all its connections") {
    const auto path = admission.consider(memory_path(0));
    CHECK(path.error == 0);
    CHECK(path.session == first.session);
    CHECK(admission.consider(memory_path(1)).path == path.path);
    CHECK(admission.admit(path.session, path.path, "host-1").why_not == nullptr);
    CHECK(admission.memory() == offered.path_memory);
  }
  SUBCASE("a connection of another kind is none of it") {
    CHECK(admission.consider(memory_path(0)).error == 0);
    auto other = memory_path(1);
    other.kind = wire::PathKind::requests;
    CHECK(admission.consider(other).error == ECONNRESET);
  }
  SUBCASE("not when the last path for requests has closed") {
    admission.close_path(first.session, first.path);
    CHECK(admission.consider(memory_path(0)).error == ENXIO);
  }
  SUBCASE("not when that happens while it shakes hands") {
    const auto path = admission.consider(memory_path(0));
    admission.close_path(first.session, first.path);
    CHECK(admission.admit(path.session, path.path, "host-1").why_not != nullptr);
  }
  SUBCASE("also when there is no memory for another path's chunks") {
    offered.memory_limit = 300;
    Admission full{offered};
    for (std::uint8_t i = 1; i < 4; ++i) enter(full, request(i, 0, 1, 0, kMemory));
    CHECK(full.consider(request(1, 0, 1, 2, kMemory)).error == ENOMEM);
    CHECK(full.consider(memory_path(0)).error == 0);
  }
}

}  // namespace
}  // namespace rtrs::admission_test
