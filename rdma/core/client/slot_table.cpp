// SPDX-License-Identifier: BSD-3-Clause
// The rules that the table keeps. A row that breaks one does not compile.
#include "rdma/core/client/slot_table.hpp"

#include <algorithm>

namespace rtrs::slot_table {
namespace {

/// One event that happens to one kind of slot, and what the table says to it.
struct Case {
  SlotState state;
  SlotEvent event;
  Direction direction;
  Caller caller;
  Peer peer;
  SlotStep step;
};

/// For all that can happen.
template <class Rule>
constexpr bool always(Rule rule) {
  for (const auto state : {free, in_flight, retry, quarantined}) {
    for (const auto event : {submitted, answered, path_lost, beaten, path_back, swept, caller_left,
                             failed, recovered, lent}) {
      for (const auto direction : {read, write}) {
        for (const auto caller : {waiting, gone}) {
          for (const auto peer : {Peer::own, Peer::kernel}) {
            const auto step = next_step(state, event, direction, caller, peer);
            if (step && !rule(Case{state, event, direction, caller, peer, *step})) return false;
          }
        }
      }
    }
  }
  return true;
}

constexpr bool has(SlotState state, SlotEvent event, Caller caller) {
  return next_step(state, event, read, caller, Peer::own) &&
         next_step(state, event, write, caller, Peer::own);
}

/// One row says what happens, not two.
static_assert(always([](const Case& c) {
  return std::ranges::count_if(kRows, [&](const SlotRow& row) {
           return covers(row, c.event, c.state, c.direction, c.caller);
         }) == 1;
}));

/// No slot is unprepared for what can happen to it at any time.
static_assert([] {
  for (const auto caller : {waiting, gone}) {
    if (!has(in_flight, answered, caller) || !has(in_flight, path_lost, caller)) return false;
    if (!has(in_flight, beaten, caller)) return false;
    if (!has(quarantined, path_back, caller) || !has(retry, swept, caller)) return false;
    for (const auto state : {retry, quarantined}) {
      if (!has(state, recovered, caller) || !has(state, lent, caller)) return false;
    }
  }
  for (const auto state : {in_flight, retry, quarantined}) {
    if (!has(state, caller_left, waiting) || !has(state, failed, waiting)) return false;
  }
  return true;
}());

/// Linux's server gets no second copy before it has ended the first: a lost slot is quarantined,
/// and only a path that is back leads out of that.
static_assert(always([](const Case& c) {
  if (c.peer == Peer::own) return true;
  if (c.event == path_lost) return c.step.next == quarantined;
  if (c.state != quarantined) return true;
  return c.step.next == (c.event == path_back ? retry : quarantined);
}));

/// A request that has left a silent path is there still, and Linux's server must not see a copy.
static_assert(always([](const Case& c) {
  return c.event != beaten || (c.peer == Peer::own && c.step.next == retry);
}));

/// An own server is asked for the end of a write whose caller has left. The permit is free when
/// that is known, or when the server has forgotten the session.
static_assert(always([](const Case& c) {
  const bool gives_back = c.state != free && c.step.next == free;
  if (c.peer == Peer::kernel || c.direction == read || !gives_back) return true;
  return c.event == answered || (c.event == recovered && c.caller == gone);
}));

/// A request that has a caller is not dropped: it is answered, or the caller leaves.
static_assert(always([](const Case& c) {
  if (c.caller == gone || c.state == free || c.step.next != free) return true;
  return c.event == answered || c.event == caller_left;
}));

/// Data are sent, and received, for callers that are there.
static_assert(always([](const Case& c) {
  if (c.step.action == settle) return c.direction == write && c.caller == gone;
  return c.step.action == none || c.caller == waiting;
}));

/// A write that Linux's server may still carry out holds back OPENs from the moment at which its
/// caller is gone.
static_assert(always([](const Case& c) {
  const bool may_come = c.step.next == in_flight || c.step.next == quarantined;
  if (c.peer == Peer::own || c.direction == read || !may_come) return true;
  if (c.event == caller_left) return c.step.hold == opens;
  return c.event != failed || c.step.hold == everything;
}));

}  // namespace
}  // namespace rtrs::slot_table
