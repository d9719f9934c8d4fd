// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/storage_watch.hpp"

#include <doctest/doctest.h>

namespace rnbd::storage_watch_test {
namespace {

using namespace std::chrono_literals;

/// One session with one device, looked at every 5 s.
struct Watched {
  std::vector<Standstills::Line> look(unsigned requests, std::uint64_t ended) {
    rtrs::ServerSessionStatus session;
    session.name = "vm";
    session.items.push_back({"disk0", "rw", requests, ended});
    return standstills.look({session}, 5s);
  }
  Standstills standstills;
};

TEST_CASE("storage that ends nothing is told after 10 s, then after twice as long") {
  Watched watched;
  CHECK(watched.look(2, 7).empty());  // it may have begun just now
  CHECK(watched.look(2, 7).empty());
  const auto told = watched.look(3, 7);
  REQUIRE(told.size() == 1);
  CHECK(told[0].level == rtrs::LogLevel::warning);
  CHECK(told[0].text ==
        "the storage of 'disk0' (session 'vm') has ended none of its 3 requests for 10 seconds; "
        "they are waited for");
  CHECK(watched.look(3, 7).empty());
  CHECK(watched.look(3, 7).size() == 1);  // 20 s
  const auto again = watched.look(2, 8);
  REQUIRE(again.size() == 1);
  CHECK(again[0].level == rtrs::LogLevel::info);
  CHECK(again[0].text == "the storage of 'disk0' (session 'vm') answers again, after 25 seconds");
  CHECK(watched.look(2, 8).empty());
  CHECK(watched.look(1, 8).size() == 1);  // and from the beginning
}

TEST_CASE("the last request of a standstill ends it, too") {
  Watched watched;
  for (int i = 0; i < 2; ++i) CHECK(watched.look(1, 0).empty());
  CHECK(watched.look(1, 0).size() == 1);
  CHECK(watched.look(0, 1).size() == 1);
}

TEST_CASE("storage that has nothing to do, or ends something between two looks, is none") {
  Watched watched;
  for (int i = 0; i < 9; ++i) CHECK(watched.look(0, 5).empty());
  for (unsigned i = 0; i < 9; ++i) CHECK(watched.look(1, 6 + i).empty());
  for (int i = 0; i < 9; ++i) CHECK(watched.look(i % 2 == 0 ? 1 : 0, 20).empty());
}

TEST_CASE("a device that is gone is forgotten") {
  Watched watched;
  for (int i = 0; i < 3; ++i) watched.look(1, 0);
  CHECK(watched.standstills.look({}, 5s).empty());
  CHECK(watched.look(1, 0).empty());
  CHECK(watched.look(1, 0).empty());
}

}  // namespace
}  // namespace rnbd::storage_watch_test
