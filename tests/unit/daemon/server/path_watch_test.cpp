// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/path_watch.hpp"

#include <doctest/doctest.h>

namespace rnbd::path_watch_test {
namespace {

ExportStatus status_of(const std::string& displaced, bool read_only = false) {
  ExportStatus status;
  status.name = "disk0";
  status.read_only = read_only;
  status.displaced = displaced;
  return status;
}

TEST_CASE("a displaced export is told once, again when it is so otherwise, and when it is right") {
  Displacements displacements;
  CHECK(displacements.look({status_of("")}).empty());
  const auto told = displacements.look({status_of("it was deleted")});
  REQUIRE(told.size() == 1);
  CHECK(told[0].level == rtrs::LogLevel::error);
  CHECK(told[0].text == "export 'disk0': it was deleted");
  CHECK(told[0].name == "disk0");
  CHECK(displacements.look({status_of("it was deleted")}).empty());
  CHECK(displacements.look({status_of("it was replaced")}).size() == 1);
  const auto right = displacements.look({status_of("")});
  REQUIRE(right.size() == 1);
  CHECK(right[0].level == rtrs::LogLevel::info);
  CHECK(displacements.look({status_of("")}).empty());
}

TEST_CASE(
    "of an export that nobody may write to it is a warning, and one that is gone is forgotten") {
  Displacements displacements;
  CHECK(displacements.look({status_of("it was deleted", true)})[0].level ==
        rtrs::LogLevel::warning);
  CHECK(displacements.look({}).empty());
  CHECK(displacements.look({status_of("it was deleted", true)}).size() == 1);
}

TEST_CASE("a deleted file of the search path that has the name of an export is told once") {
  const ExportStatus there = status_of(""), deleted = status_of("it was deleted");
  for (const auto& both : {std::vector{there, deleted}, std::vector{deleted, there}}) {
    Displacements displacements;
    const auto told = displacements.look(both);
    REQUIRE(told.size() == 1);
    CHECK(told[0].text == "export 'disk0': it was deleted");
    CHECK(displacements.look(both).empty());
    CHECK(displacements.look({there}).size() == 1);
  }
}

TEST_CASE("a look that hangs is not begun twice") {
  ExportCatalogue catalogue{{}};
  std::vector<std::function<void()>> begun;
  PathWatch watch{
      catalogue, [&](std::function<void()> work) { begun.push_back(std::move(work)); }, {}};
  watch.look_soon();
  watch.look_soon();
  REQUIRE(begun.size() == 1);
  begun[0]();
  watch.look_soon();
  CHECK(begun.size() == 2);
}

}  // namespace
}  // namespace rnbd::path_watch_test
