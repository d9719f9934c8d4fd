// SPDX-License-Identifier: BSD-3-Clause
// The table of slots, as docs/architecture.md prints it. Its rules are proven where it is compiled.
#include "rdma/core/client/slot_table.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace rtrs::slot_table_test {
namespace {

std::string name_of(SlotState state) {
  constexpr const char* kNames[] = {"free", "in_flight", "retry", "quarantined"};
  return kNames[static_cast<std::size_t>(state)];
}

std::string name_of(SlotEvent event) {
  constexpr const char* kNames[] = {"submitted", "answered", "path_lost",   "beaten",
                                    "path_back", "swept",    "caller_left", "failed",
                                    "recovered", "lent"};
  return kNames[static_cast<std::size_t>(event)];
}

std::string text_of(const SlotStep& step) {
  constexpr const char* kActions[] = {"", ", send", ", settle", ", requeue", ", renew"};
  constexpr const char* kHolds[] = {"", ", holds opens_if_close", ", holds opens", ", holds scope",
                                    ", holds everything"};
  return name_of(step.next) + kActions[static_cast<std::size_t>(step.action)] +
         kHolds[static_cast<std::size_t>(step.hold)];
}

std::string line_of(const SlotRow& row) {
  std::string direction = "any";
  std::string caller = "any";
  if (row.direction) direction = *row.direction == Direction::read ? "read" : "write";
  if (row.caller) caller = *row.caller == Caller::waiting ? "waiting" : "gone";
  return "| " + name_of(row.event) + " | " + name_of(row.state) + " | " + direction + " | " +
         caller + " | " + text_of(row.own) + " | " +
         (row.own_only ? "cannot happen" : text_of(row.kernel)) + " |\n";
}

}  // namespace

TEST_CASE("the table of slots is printed in docs/architecture.md") {
  std::ifstream file{RNBDKIT_SOURCE_DIR "/docs/architecture.md"};
  std::stringstream text;
  text << file.rdbuf();
  std::string table;
  for (const SlotRow& row : slot_table::kRows) table += line_of(row);
  const bool printed = text.str().find(table) != std::string::npos;
  CHECK_MESSAGE(printed, "print this there:\n", table);
}

TEST_CASE("what cannot happen to a slot has no row") {
  using enum SlotState;
  const auto step = [](SlotState state, SlotEvent event) {
    return next_step(state, event, Direction::write, Caller::waiting, Peer::own);
  };
  CHECK_FALSE(step(free, SlotEvent::answered));
  CHECK_FALSE(step(free, SlotEvent::path_lost));
  CHECK_FALSE(step(in_flight, SlotEvent::lent));
  CHECK_FALSE(step(quarantined, SlotEvent::swept));
  CHECK_FALSE(step(quarantined, SlotEvent::answered));
  CHECK_FALSE(step(retry, SlotEvent::beaten));
}

}  // namespace rtrs::slot_table_test
