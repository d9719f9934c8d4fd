// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/race.hpp"

#include "rdma/wire/ensure.hpp"

namespace rtrs {
namespace {

template <class Rule>
constexpr bool always(Rule rule) {
  for (const auto& row : race_table::kRows) {
    if (!rule(row)) return false;
  }
  return true;
}

/// Only an unanswered question leads to silence, and only by a witness.
static_assert(always([](const race_table::Row& row) {
  const bool becomes = row.next == RaceState::silent && row.state != RaceState::silent;
  return becomes == (row.event == RaceEvent::beaten && row.state == RaceState::outrun);
}));
static_assert(always([](const race_table::Row& row) {
  const bool becomes = row.next == RaceState::outrun && row.state != RaceState::outrun;
  return becomes == (row.event == RaceEvent::outrun && row.state == RaceState::asked);
}));

/// Any arrival ends both.
static_assert(next_state(RaceState::outrun, RaceEvent::arrival) == RaceState::asked &&
              next_state(RaceState::silent, RaceEvent::arrival) == RaceState::asked &&
              next_state(RaceState::outrun, RaceEvent::answer) == RaceState::calm &&
              next_state(RaceState::silent, RaceEvent::answer) == RaceState::calm);

/// One question is under way at a time.
static_assert(!next_state(RaceState::asked, RaceEvent::asks) &&
              !next_state(RaceState::outrun, RaceEvent::asks) &&
              !next_state(RaceState::silent, RaceEvent::asks));

}  // namespace

void Race::step(RaceEvent event) {
  const auto next = next_state(state_, event);
  RTRS_ENSURE(next.has_value());
  state_ = *next;
  if (!is_outrun()) due_ = Instant::max();
}

bool Race::look(Instant now, std::uint64_t received, bool owes) {
  const bool heard = std::exchange(seen_, received) != received;
  if (heard) {
    step(RaceEvent::arrival);
    carried_.reset();
    lives_ = true;
  }
  const bool due = owes || !is_calm();
  const bool begins = due && !owed_;
  owed_ = due;
  if (heard || begins) heard_at_ = now;
  return due && !heard;
}

void Race::on_carried(Instant now, std::uint64_t bytes) {
  if (!carried_) carried_ = bytes;
  if (bytes < *carried_ + kMoves) return;
  carried_ = bytes;
  step(RaceEvent::arrival);
  heard_at_ = now;
  lives_ = true;
}

bool Race::on_interval(unsigned misses_max) {
  if (std::exchange(lives_, false) || !owed_) {
    missed_ = 0;
    return true;
  }
  if (missed_ > misses_max) return false;
  ++missed_;
  return true;
}

void Race::on_asked(Instant now) {
  step(RaceEvent::asks);
  ++questions_;
  question_ = now;
  if (!std::exchange(owed_, true)) heard_at_ = now;
}

/// The first witness counts. Later answers, to newer questions, give no more time.
void Race::on_outrun(const Race& witness) {
  step(RaceEvent::outrun);
  const Duration took = witness.answered_ - witness.asked_;
  due_ = std::min(due_, witness.answered_ + std::max(kGrace, took));
}

void Race::on_answered(Instant now) {
  step(RaceEvent::answer);
  asked_ = question_;
  answered_ = now;
  rtt_ = std::min(answered_ - asked_, kLongestRtt);
}

}  // namespace rtrs
