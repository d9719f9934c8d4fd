// SPDX-License-Identifier: BSD-3-Clause
// Admission of several users and from several hosts, which must not hinder each other.
#include <doctest/doctest.h>

#include <cerrno>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/core/admission.hpp"
#include "tests/unit/core/admission_fixture.hpp"

namespace rtrs::admission_test {
namespace {

TEST_CASE("a session is that of one user, whoever else knows its uuid") {
  Admission admission{limits()};
  const auto by = [&](const char* user, std::uint16_t cid) {
    return admission.consider(request(1, cid, 2, 0, kExactlyOnce), user);
  };
  const auto first = by("host1", 0);
  REQUIRE(first.error == 0);
  REQUIRE(by("host1", 1).error == 0);
  REQUIRE(admission.admit(first.session, first.path, "name").why_not == nullptr);
  SUBCASE("another user does not join it") { CHECK(by("host2", 0).error == EACCES); }
  SUBCASE("nor does one who has proven nothing") { CHECK(by("", 0).error == EACCES); }
  SUBCASE("nor when it waits for its client") {
    admission.close_path(first.session, first.path);
    admission.set_idle(first.session);
    CHECK(by("host2", 0).error == EACCES);
    CHECK(by("host1", 0).error == 0);
  }
}

/// Why the user's session is refused; null = it is in.
const char* enter_of(Admission& admission, std::uint8_t uuid, const char* user,
                     const char* name = nullptr) {
  const auto considered = admission.consider(request(uuid, 0, 1, 0, kExactlyOnce), user);
  if (considered.error != 0) {
    CHECK(considered.error == ENOMEM);
    return considered.why;
  }
  const std::string own = "name-" + std::to_string(uuid);
  return admission.admit(considered.session, considered.path, name != nullptr ? name : own).why_not;
}

TEST_CASE("a user has so many sessions and so much memory, and others are not hindered") {
  AdmissionLimits few = limits();
  SUBCASE("sessions") { few.max_sessions_per_user = 2; }
  SUBCASE("memory") { few.memory_limit_per_user = 200; }
  Admission admission{few};
  CHECK(enter_of(admission, 1, "host1") == nullptr);
  CHECK(enter_of(admission, 2, "host1") == nullptr);
  const char* const why = enter_of(admission, 3, "host1");
  REQUIRE(why != nullptr);
  CHECK(std::string{why}.find("-per-user)") != std::string::npos);
  CHECK(enter_of(admission, 4, "host2") == nullptr);
  CHECK(enter_of(admission, 5, "") == nullptr);
  CHECK(admission.sessions() == 4);
}

TEST_CASE("who has proven nothing is no user, and has no limit of one") {
  AdmissionLimits few = limits();
  few.max_sessions_per_user = 1;
  Admission admission{few};
  CHECK(enter_of(admission, 1, "") == nullptr);
  CHECK(enter_of(admission, 2, "") == nullptr);
}

TEST_CASE("an idle session is in its user's way only if it does not go for its name's sake") {
  AdmissionLimits few = limits();
  few.max_sessions_per_user = 1;
  Admission admission{few};
  const auto first = admission.consider(request(1, 0, 1, 0, kExactlyOnce), "host1");
  REQUIRE(admission.admit(first.session, first.path, "vm").why_not == nullptr);
  admission.close_path(first.session, first.path);
  admission.remove_path(first.session, first.path);
  admission.set_idle(first.session);
  CHECK(enter_of(admission, 2, "host1", "other") != nullptr);
  CHECK(enter_of(admission, 3, "host1", "vm") == nullptr);
}

TEST_CASE("limits of a user hold for who proves its name after it was considered") {
  AdmissionLimits few = limits();
  few.max_sessions_per_user = 1;
  Admission admission{few};
  CHECK(enter_of(admission, 1, "host1") == nullptr);
  const auto second = admission.consider(request(2, 0, 1, 0, kExactlyOnce), std::nullopt);
  REQUIRE(second.error == 0);
  CHECK(admission.admit(second.session, second.path, "b", "host1").why_not != nullptr);
  const auto third = admission.consider(request(3, 0, 1, 0, kExactlyOnce), std::nullopt);
  CHECK(admission.admit(third.session, third.path, "c", "host2").why_not == nullptr);
}

TEST_CASE("a half-open session of another user is in nobody's way") {
  Admission admission{limits()};
  const auto by = [&](const char* user) { return admission.consider(request(1, 0, 1), user); };
  const auto other = by("host2");
  const auto own = by("host1");
  REQUIRE(own.error == 0);
  CHECK(own.session != other.session);
  CHECK(admission.admit(own.session, own.path, "name").why_not == nullptr);
  CHECK(admission.admit(other.session, other.path, "name").why_not != nullptr);
}

TEST_CASE("a user cannot end an idle session of another by taking its name") {
  Admission admission{limits()};
  const auto enter_as = [&](std::uint8_t uuid, const char* user) {
    const auto considered = admission.consider(request(uuid, 0, 1, 0, kExactlyOnce), user);
    REQUIRE(considered.error == 0);
    const auto admitted = admission.admit(considered.session, considered.path, "same");
    REQUIRE(admitted.why_not == nullptr);
    return std::pair{considered, admitted};
  };
  const auto [first, in] = enter_as(1, "host1");
  admission.close_path(first.session, first.path);
  admission.set_idle(first.session);
  CHECK(enter_as(2, "host2").second.ends == 0);
  CHECK(enter_as(3, "host1").second.ends == first.session);
}

TEST_CASE("admission: a host that fills all places makes room itself, and pushes nobody else out") {
  AdmissionLimits few = limits();
  few.max_half_open = 4;
  Admission admission{few};
  const auto come = [&](std::uint8_t session, const char* host) {
    return admission.consider(request(session, 0), std::nullopt, host);
  };
  const auto honest = come(1, "10.0.0.1");
  std::vector<Admission::PathId> crowd;
  for (std::uint8_t n = 2; n < 5; ++n) crowd.push_back(come(n, "10.0.0.9").path);
  for (std::uint8_t n = 5; n < 60; ++n) {
    const auto next = come(n, "10.0.0.9");
    REQUIRE(next.error == 0);
    CHECK(next.makes_room.path == crowd[n - 5U]);
    crowd.push_back(next.path);
  }
  // A newcomer is let in at the cost of the crowd, too.
  CHECK(come(60, "10.0.0.2").makes_room.path == crowd[crowd.size() - 3]);
  CHECK(admission.half_open() == 4);
  CHECK(admission.admit(honest.session, honest.path, "honest", "host1").why_not == nullptr);
}

TEST_CASE("admission: a host with most of the half-open paths cannot name one to keep them all") {
  Admission admission{limits()};
  REQUIRE(admission.consider(request(1, 0), std::nullopt, "10.0.0.1").error == 0);
  auto same = request(2, 0);
  same.path_uuid.fill(7);
  const auto oldest = admission.consider(same, std::nullopt, "10.0.0.9");
  same.session_uuid.fill(3);
  REQUIRE(admission.consider(same, std::nullopt, "10.0.0.9").error == 0);
  CHECK(admission.turn_away_oldest(same.path_uuid).path == 0);
  CHECK(admission.half_open() == 3);
  CHECK(admission.turn_away_oldest(request(1, 0).path_uuid).path == oldest.path);
  CHECK(admission.half_open() == 2);
}

TEST_CASE("admission: a session that is in does not count against its host") {
  AdmissionLimits few = limits();
  few.max_half_open = 2;
  Admission admission{few};
  const auto in = admission.consider(request(1, 0, 1), std::nullopt, "10.0.0.1");
  REQUIRE(admission.admit(in.session, in.path, "first", "host1").why_not == nullptr);
  const auto other = admission.consider(request(2, 0, 1), std::nullopt, "10.0.0.9");
  const auto again = admission.consider(request(3, 0, 1), std::nullopt, "10.0.0.1");
  CHECK(again.makes_room.path == 0);
  // As many of both: the one that has waited longest.
  CHECK(admission.consider(request(4, 0, 1), std::nullopt, "10.0.0.3").makes_room.path ==
        other.path);
}

TEST_CASE("admission: an owner of a network fills the places of that network only") {
  AdmissionLimits few = limits();
  few.max_half_open = 4;
  Admission admission{few};
  const auto come = [&](std::uint8_t session, const std::string& host) {
    return admission.consider(request(session, 0), std::nullopt, host);
  };
  const auto honest = come(1, "site1/a/b/7");
  const auto neighbour = come(2, "site2/a/b/7");
  for (std::uint8_t n = 3; n < 60; ++n) {
    // Of four networks in one that is larger, with an address of its own each, but for every third.
    const std::string address = n % 3 == 0 ? "9" : std::to_string(n);
    come(n, "site2/c/" + std::to_string(n % 4) + '/' + address);
  }
  CHECK(admission.half_open() == 4);
  CHECK(admission.admit(honest.session, honest.path, "honest", "host1").why_not == nullptr);
  CHECK(admission.admit(neighbour.session, neighbour.path, "next", "host2").why_not == nullptr);
}

TEST_CASE("two servers in one process name their options each in its own words") {
  OptionWords words = kProgramWords;
  words.large_path = "no memory left, in other words";
  AdmissionLimits small = limits();
  small.memory_limit = 0;
  AdmissionLimits other = small;
  other.words = &words;
  const auto refusal = [](const AdmissionLimits& limited) {
    return std::string_view{Admission{limited}.consider(request(1, 0)).why};
  };
  CHECK(refusal(small) == kProgramWords.large_path);
  CHECK(refusal(other) == words.large_path);
}

}  // namespace
}  // namespace rtrs::admission_test
