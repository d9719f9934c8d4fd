#include "rdma/core/admission.hpp"

#include <doctest/doctest.h>

#include <cerrno>

namespace rtrs {
namespace {

constexpr std::uint32_t kExactlyOnce = wire::kFeatureExactlyOnce;

wire::ConnectParameters request(std::uint8_t session, std::uint16_t cid, std::uint16_t count = 3,
                                std::uint8_t path = 0, std::uint32_t features = 0) {
  wire::ConnectParameters parameters;
  parameters.cid = cid;
  parameters.cid_count = count;
  parameters.session_uuid.fill(session);
  parameters.path_uuid.fill(static_cast<std::uint8_t>(session + 100 + path));
  parameters.first_connection = true;
  parameters.extension.present = features != 0;
  parameters.extension.features = features;
  return parameters;
}

AdmissionLimits limits() {
  return {.max_sessions = 4,
          .max_paths_per_session = 3,
          .max_connections_per_path = 8,
          .path_memory = 100,
          .memory_limit = 1000,
          .features = kExactlyOnce};
}

TEST_CASE("the connections of a path are let in once each, in any order behind the first") {
  Admission admission{limits()};
  // Left over from an attempt whose session is gone.
  CHECK(admission.admit(request(1, 2)).error == ENXIO);
  const auto first = admission.admit(request(1, 0));
  CHECK(first.error == 0);
  CHECK(first.new_session);
  CHECK(first.new_path);
  CHECK(admission.admit(request(1, 2)).error == 0);
  CHECK(admission.admit(request(1, 2)).error == ECONNRESET);
  const auto last = admission.admit(request(1, 1));
  CHECK(last.error == 0);
  CHECK_FALSE(last.new_session);
  CHECK_FALSE(last.new_path);
  CHECK(last.session == first.session);
  CHECK(last.path == first.path);
}

TEST_CASE("a uuid of zeros is nobody's: whoever has one would share a session with others") {
  Admission admission{limits()};
  for (const std::uint32_t features : {0U, kExactlyOnce}) {
    auto session = request(1, 0, 3, 0, features);
    session.session_uuid = {};
    CHECK(admission.admit(session).error == EINVAL);
    auto path = request(1, 0, 3, 0, features);
    path.path_uuid = {};
    CHECK(admission.admit(path).error == EINVAL);
  }
  CHECK(admission.sessions() == 0);
  CHECK(admission.memory() == 0);
  auto nearly = request(1, 0);
  nearly.session_uuid = nearly.path_uuid = {};
  nearly.session_uuid.back() = nearly.path_uuid.back() = 1;
  CHECK(admission.admit(nearly).error == 0);
  // Nor does it join a session that is there.
  auto joins = nearly;
  joins.path_uuid = {};
  CHECK(admission.admit(joins).error == EINVAL);
}

TEST_CASE("a connection that contradicts its path or session is refused") {
  Admission admission{limits()};
  REQUIRE(admission.admit(request(1, 0)).error == 0);
  CHECK(admission.admit(request(1, 1, 4)).error == ECONNRESET);
  CHECK(admission.admit(request(1, 1, 3, 0, kExactlyOnce)).error == ECONNRESET);
  CHECK(admission.admit(request(1, 0, 3, 1, kExactlyOnce)).error == ECONNRESET);
  CHECK(admission.admit(request(1, 1)).error == 0);
}

TEST_CASE("an attempt that a later one of the same path has overtaken is refused") {
  Admission admission{limits()};
  const auto attempt = [&](std::uint16_t cid, std::uint16_t count) {
    wire::ConnectParameters parameters = request(1, cid, 3, 0, kExactlyOnce);
    parameters.reconnect_count = count;
    return admission.admit(parameters).error;
  };
  REQUIRE(attempt(0, 1) == 0);
  REQUIRE(attempt(0, 65535) == ECONNRESET);
  REQUIRE(attempt(0, 3) == 0);
  CHECK(attempt(1, 2) == ECONNRESET);
  CHECK(attempt(0, 2) == ECONNRESET);
  CHECK(attempt(1, 3) == 0);
}

TEST_CASE("unless told otherwise, a Linux client with 1023 CPUs is let in") {
  Admission admission{{.memory_limit = 1000}};
  CHECK(admission.admit(request(1, 0, 1024)).error == 0);
  CHECK(admission.admit(request(2, 0, 1025)).error == EINVAL);
}

TEST_CASE("only the first connection of a session may create it") {
  Admission admission{limits()};
  auto late = request(1, 0);
  late.first_connection = false;
  CHECK(admission.admit(late).error == ENXIO);
  CHECK(admission.admit(request(1, 0)).error == 0);
  late.cid = 1;
  CHECK(admission.admit(late).error == 0);
  late.cid = 0;
  late.path_uuid.fill(77);
  CHECK(admission.admit(late).error == 0);
}

TEST_CASE("a session has several paths, up to a limit") {
  Admission admission{limits()};
  const auto first = admission.admit(request(1, 0, 3, 0));
  const auto second = admission.admit(request(1, 0, 2, 1));
  CHECK(second.error == 0);
  CHECK(second.session == first.session);
  CHECK(second.new_path);
  CHECK_FALSE(second.new_session);
  CHECK(second.path != first.path);
  CHECK(admission.admit(request(1, 1, 2, 1)).path == second.path);
  CHECK(admission.admit(request(1, 0, 1, 2)).error == 0);
  CHECK(admission.admit(request(1, 0, 1, 3)).error == ENOMEM);
  CHECK(admission.sessions() == 1);
  admission.close_path(first.session, second.path);
  CHECK(admission.admit(request(1, 0, 1, 3)).error == 0);
}

wire::ConnectParameters once(std::uint8_t session, std::uint16_t cid, std::uint16_t count,
                             std::uint8_t path = 0) {
  return request(session, cid, count, path, kExactlyOnce);
}

TEST_CASE("connection 0 of a path that is there already replaces it, and the others follow") {
  Admission admission{limits()};
  const auto old = admission.admit(once(1, 0, 2));
  REQUIRE(admission.admit(once(1, 1, 2)).error == 0);
  SUBCASE("it is open") {
    const auto again = admission.admit(once(1, 0, 2));
    CHECK(again.error == 0);
    CHECK(again.new_path);
    CHECK(again.replaces == old.path);
    CHECK(again.path != old.path);
    CHECK(admission.admit(once(1, 1, 2)).path == again.path);
    CHECK(admission.admit(once(1, 1, 2)).error == ECONNRESET);
  }
  SUBCASE("it has closed while requests execute in it, and another path lives") {
    REQUIRE(admission.admit(once(1, 0, 1, 1)).error == 0);
    admission.close_path(old.session, old.path);
    CHECK(admission.admit(once(1, 1, 2)).error == ECONNRESET);
    const auto again = admission.admit(once(1, 0, 3));
    CHECK(again.error == 0);
    CHECK(again.replaces == 0);
    CHECK(admission.memory() == 300);
    admission.remove_path(old.session, old.path);
    CHECK(admission.memory() == 200);
    CHECK(admission.admit(once(1, 2, 3)).path == again.path);
  }
  SUBCASE("there is no memory for both: the old one stays as it is") {
    for (std::uint8_t other = 2; other < 5; ++other) {
      for (std::uint8_t path = 0; path < 3; ++path) {
        REQUIRE(admission.admit(once(other, 0, 1, path)).error == 0);
      }
    }
    CHECK(admission.memory() == 1000);
    CHECK(admission.admit(once(1, 0, 2)).error == ENOMEM);
    CHECK(admission.admit(once(1, 1, 2)).error == ECONNRESET);
  }
}

TEST_CASE("closed paths that still execute cannot be collected") {
  Admission admission{limits()};
  unsigned admitted = 0;
  while (admission.admit(once(1, 0, 1, 0)).error == 0) REQUIRE(++admitted < 100);
  CHECK(admitted == 6);
}

TEST_CASE("a closed path counts with what it still holds") {
  Admission admission{limits()};
  const auto old = admission.admit(once(1, 0, 1));
  REQUIRE(admission.admit(once(2, 0, 1)).error == 0);
  admission.close_path(old.session, old.path);
  CHECK(admission.memory() == 200);
  admission.shrink_path(old.session, old.path, 30);
  CHECK(admission.memory() == 130);
  CHECK(admission.admit(once(1, 0, 1)).error == 0);
  CHECK(admission.memory() == 230);
  admission.remove_path(old.session, old.path);
  CHECK(admission.memory() == 200);
  admission.shrink_path(old.session, old.path, 30);  // told late
  CHECK(admission.memory() == 200);
}

/// How often the path comes back while what it had under way hangs, up to a number.
unsigned returns(Admission& admission, std::uint8_t session, std::uint64_t held, unsigned times) {
  for (unsigned i = 0; i < times; ++i) {
    const auto decision = admission.admit(once(session, 0, 1));
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
    CHECK(admission.admit(once(1, 0, 1)).error == ENOMEM);
    CHECK(admission.admit(once(2, 0, 1)).error == 0);
  }
  SUBCASE("one with few: others notice nothing of it") {
    Admission admission{limits()};
    CHECK(returns(admission, 1, 10, 6) == 6);
    CHECK(admission.memory() == 60);
  }
  SUBCASE("where a quarter is less than a path, its client may come back once") {
    Admission admission{{.path_memory = 100, .memory_limit = 300, .features = kExactlyOnce}};
    CHECK(returns(admission, 1, 100, 100) == 2);
    CHECK(admission.admit(once(2, 0, 1)).error == 0);
  }
}

TEST_CASE(
    "a path of a peer without generations comes back when its old life has ended, not before") {
  Admission admission{limits()};
  const auto old = admission.admit(request(1, 0, 1));
  REQUIRE(admission.admit(request(1, 0, 1, 1)).error == 0);
  CHECK(admission.admit(request(1, 0, 1)).error == ECONNRESET);
  admission.close_path(old.session, old.path);
  CHECK(admission.admit(request(1, 0, 1)).error == ECONNRESET);
  admission.remove_path(old.session, old.path);
  CHECK(admission.admit(request(1, 0, 1)).new_path);
}

TEST_CASE("sessions, memory and connections have limits, and come back when a session goes") {
  SUBCASE("sessions") {
    Admission admission{{.max_sessions = 2, .memory_limit = 1000}};
    CHECK(admission.admit(request(1, 0)).error == 0);
    const auto second = admission.admit(request(2, 0));
    CHECK(second.error == 0);
    CHECK(admission.admit(request(3, 0)).error == ENOMEM);
    admission.remove(second.session);
    CHECK(admission.admit(request(3, 0)).error == 0);
  }
  SUBCASE("memory, which is a path's") {
    Admission admission{{.path_memory = 100, .memory_limit = 350}};
    CHECK(admission.admit(request(1, 0)).error == 0);
    CHECK(admission.admit(request(1, 0, 3, 1)).error == 0);
    CHECK(admission.admit(request(2, 0)).error == 0);
    CHECK(admission.admit(request(3, 0)).error == ENOMEM);
    CHECK(admission.admit(request(2, 0, 3, 1)).error == ENOMEM);
    CHECK(admission.memory() == 300);
    admission.remove(1);
    CHECK(admission.memory() == 100);
  }
  SUBCASE("connections of one path") {
    Admission admission{limits()};
    CHECK(admission.admit(request(1, 0, 9)).error == EINVAL);
    CHECK(admission.sessions() == 0);
    CHECK(admission.admit(request(1, 0, 8)).error == 0);
    CHECK(admission.admit(request(1, 0, 9, 1)).error == EINVAL);
  }
}

TEST_CASE("a session without paths is over, unless it lingers") {
  Admission admission{limits()};
  SUBCASE("a peer without the extension") {
    const auto first = admission.admit(request(1, 0));
    admission.close_path(first.session, first.path);
    CHECK(admission.admit(request(1, 1)).error == ECONNRESET);
    CHECK(admission.admit(request(1, 0)).error == ECONNRESET);
    admission.remove(first.session);
    const auto again = admission.admit(request(1, 0));
    CHECK(again.error == 0);
    CHECK(again.session != first.session);
  }
  SUBCASE("one with it") {
    const auto first = admission.admit(request(1, 0, 3, 0, kExactlyOnce));
    admission.close_path(first.session, first.path);
    auto back = request(1, 0, 3, 0, kExactlyOnce);
    back.first_connection = false;
    const auto again = admission.admit(back);
    CHECK(again.error == 0);
    CHECK(again.session == first.session);
    CHECK(again.new_path);
    admission.close(first.session);
    CHECK(admission.admit(request(1, 0, 3, 1, kExactlyOnce)).error == ECONNRESET);
  }
}

TEST_CASE("a session name belongs to one session at a time") {
  Admission admission{limits()};
  const auto first = admission.admit(request(1, 0));
  const auto second = admission.admit(request(2, 0));
  CHECK(admission.claim_name(first.session, "host-a").granted);
  CHECK(admission.claim_name(first.session, "host-a").granted);  // on its next path
  CHECK_FALSE(admission.claim_name(second.session, "host-a").granted);
  CHECK(admission.claim_name(second.session, "host-b").granted);
  admission.remove(first.session);
  const auto third = admission.admit(request(3, 0));
  CHECK(admission.claim_name(third.session, "host-a").granted);
  CHECK_FALSE(admission.claim_name(first.session, "host-c").granted);
}

TEST_CASE("an idle session yields its name and ends; one that was joined again does not") {
  Admission admission{limits()};
  const auto first = admission.admit(request(1, 0, 3, 0, kExactlyOnce));
  const auto second = admission.admit(request(2, 0));
  REQUIRE(admission.claim_name(first.session, "host").granted);
  admission.close_path(first.session, first.path);
  CHECK_FALSE(admission.claim_name(second.session, "host").granted);  // something executes
  admission.set_idle(first.session);
  SUBCASE("nobody joined") {
    const auto claim = admission.claim_name(second.session, "host");
    CHECK(claim.granted);
    CHECK(claim.ends == first.session);
    CHECK(admission.admit(request(1, 0, 3, 0, kExactlyOnce)).error == ECONNRESET);
  }
  SUBCASE("joined") {
    REQUIRE(admission.admit(request(1, 0, 3, 0, kExactlyOnce)).error == 0);
    CHECK_FALSE(admission.claim_name(second.session, "host").granted);
    admission.set_idle(first.session);  // told late
    CHECK_FALSE(admission.claim_name(second.session, "host").granted);
  }
}

}  // namespace
}  // namespace rtrs
