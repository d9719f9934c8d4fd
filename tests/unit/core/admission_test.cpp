#include "rdma/core/admission.hpp"

#include <doctest/doctest.h>

#include <cerrno>

namespace rtrs {
namespace {

wire::ConnectParameters request(std::uint8_t session, std::uint16_t cid, std::uint16_t count = 3) {
  wire::ConnectParameters parameters;
  parameters.cid = cid;
  parameters.cid_count = count;
  parameters.session_uuid.fill(session);
  parameters.path_uuid.fill(static_cast<std::uint8_t>(session + 100));
  parameters.first_connection = true;
  return parameters;
}

AdmissionLimits limits() { return {4, 8, 100, 1000}; }

TEST_CASE("the connections of a path are let in once each, in any order") {
  Admission admission{limits()};
  const auto first = admission.admit(request(1, 2));
  CHECK(first.error == 0);
  CHECK(first.created);
  CHECK_FALSE(admission.complete(first.session));
  CHECK(admission.admit(request(1, 0)).error == 0);
  CHECK(admission.admit(request(1, 2)).error == ECONNRESET);
  const auto last = admission.admit(request(1, 1));
  CHECK(last.error == 0);
  CHECK_FALSE(last.created);
  CHECK(last.session == first.session);
  CHECK(admission.complete(first.session));
}

TEST_CASE("a connection that contradicts its path is refused") {
  Admission admission{limits()};
  REQUIRE(admission.admit(request(1, 0)).error == 0);
  CHECK(admission.admit(request(1, 1, 4)).error == ECONNRESET);
  auto other_path = request(1, 1);
  other_path.path_uuid.fill(9);
  CHECK(admission.admit(other_path).error == EEXIST);
}

TEST_CASE("only the first connection of a session may create it") {
  Admission admission{limits()};
  auto late = request(1, 0);
  late.first_connection = false;
  CHECK(admission.admit(late).error == ENXIO);
  CHECK(admission.admit(request(1, 0)).error == 0);
  late.cid = 1;
  CHECK(admission.admit(late).error == 0);
}

TEST_CASE("sessions, memory and connections have limits, and come back when a session goes") {
  SUBCASE("sessions") {
    Admission admission{{2, 8, 100, 1000}};
    CHECK(admission.admit(request(1, 0)).error == 0);
    const auto second = admission.admit(request(2, 0));
    CHECK(second.error == 0);
    CHECK(admission.admit(request(3, 0)).error == ENOMEM);
    admission.remove(second.session);
    CHECK(admission.admit(request(3, 0)).error == 0);
  }
  SUBCASE("memory") {
    Admission admission{{100, 8, 100, 250}};
    CHECK(admission.admit(request(1, 0)).error == 0);
    CHECK(admission.admit(request(2, 0)).error == 0);
    CHECK(admission.admit(request(3, 0)).error == ENOMEM);
    CHECK(admission.memory() == 200);
  }
  SUBCASE("connections of one path") {
    Admission admission{limits()};
    CHECK(admission.admit(request(1, 0, 9)).error == EINVAL);
    CHECK(admission.admit(request(1, 0, 8)).error == 0);
  }
}

TEST_CASE("a path that closes takes no more connections until it is gone") {
  Admission admission{limits()};
  const auto first = admission.admit(request(1, 0));
  admission.close(first.session);
  CHECK(admission.admit(request(1, 1)).error == ECONNRESET);
  admission.remove(first.session);
  const auto again = admission.admit(request(1, 1));
  CHECK(again.error == 0);
  CHECK(again.session != first.session);
}

TEST_CASE("a session name belongs to one session at a time") {
  Admission admission{limits()};
  const auto first = admission.admit(request(1, 0));
  const auto second = admission.admit(request(2, 0));
  CHECK(admission.claim_name(first.session, "host-a"));
  CHECK_FALSE(admission.claim_name(second.session, "host-a"));
  CHECK(admission.claim_name(second.session, "host-b"));
  admission.remove(first.session);
  const auto third = admission.admit(request(3, 0));
  CHECK(admission.claim_name(third.session, "host-a"));
  CHECK_FALSE(admission.claim_name(first.session, "host-c"));
}

}  // namespace
}  // namespace rtrs
