// SPDX-License-Identifier: BSD-3-Clause
// At every step of a replacement one program serves, or can go on to serve.
#include "bridge/daemon/bridge/succession.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <set>

namespace rnbd::succession_test {
namespace {

constexpr Turn kTurns[] = {Turn::asked,    Turn::ready,  Turn::still,
                           Turn::accepted, Turn::failed, Turn::stop};
constexpr Stage kStages[] = {Stage::serving, Stage::preparing, Stage::pausing, Stage::offering,
                             Stage::gone};

TEST_CASE("each turn has one meaning at most in a stage") {
  std::set<std::pair<Stage, Turn>> seen;
  for (const SuccessionRow& row : succession_rows()) {
    CHECK(seen.emplace(row.from, row.turn).second);
    CHECK(succession_row(row.from, row.turn) == &row);
  }
}

TEST_CASE("from each stage with an heir a failure, or an end, leads back to serving") {
  for (const Stage stage : {Stage::preparing, Stage::pausing, Stage::offering}) {
    for (const Turn turn : {Turn::failed, Turn::stop}) {
      REQUIRE(succession_row(stage, turn) != nullptr);
      CHECK(succession_row(stage, turn)->to == Stage::serving);
    }
  }
}

TEST_CASE("what was paused is resumed, and what was let go is taken back") {
  for (const Turn turn : {Turn::failed, Turn::stop}) {
    CHECK(succession_row(Stage::preparing, turn)->step == Step::give_up);
    CHECK(succession_row(Stage::pausing, turn)->step == Step::resume);
    CHECK(succession_row(Stage::offering, turn)->step == Step::take_back);
  }
}

TEST_CASE("the program leaves only when its heir has everything, and does nothing after that") {
  for (const SuccessionRow& row : succession_rows()) {
    CHECK((row.to == Stage::gone) == (row.step == Step::leave));
    if (row.to == Stage::gone) CHECK((row.from == Stage::offering && row.turn == Turn::accepted));
  }
  for (const Turn turn : kTurns) CHECK(succession_row(Stage::gone, turn) == nullptr);
}

TEST_CASE("there is one heir at a time") {
  for (const Stage stage : kStages)
    CHECK((succession_row(stage, Turn::asked) != nullptr) == (stage == Stage::serving));
}

TEST_CASE("nothing is let go while requests are under way") {
  for (const SuccessionRow& row : succession_rows()) {
    if (row.step == Step::offer) CHECK((row.from == Stage::pausing && row.turn == Turn::still));
  }
}

}  // namespace
}  // namespace rnbd::succession_test
