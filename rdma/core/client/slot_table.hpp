// SPDX-License-Identifier: BSD-3-Clause
// The transitions of a permit at the client, as one table: own servers and Linux's side by side.
// slot_table.cpp proves the rules that it keeps.
// Source: docs/architecture.md, a slot; docs/protocol.md, several paths.
#pragma once

#include <optional>

#include "rdma/core/client/slot.hpp"

namespace rtrs {

/// No direction, or caller: both.
struct SlotRow {
  SlotEvent event;
  SlotState state;
  std::optional<Direction> direction;
  std::optional<Caller> caller;
  SlotStep own;
  SlotStep kernel;
  bool own_only = false;  ///< it cannot happen to a slot of Linux's server
};

namespace slot_table {

using enum SlotState;
using enum SlotEvent;
using enum SlotAction;
using enum Hold;
inline constexpr std::nullopt_t any = std::nullopt;
inline constexpr auto read = Direction::read;
inline constexpr auto write = Direction::write;
inline constexpr auto waiting = Caller::waiting;
inline constexpr auto gone = Caller::gone;

inline constexpr SlotRow kRows[] = {
    // event, state, direction, caller, own, kernel
    {submitted, free, any, waiting, {in_flight, send}, {in_flight, send}},
    {answered, in_flight, any, any, {free}, {free}},

    {path_lost, in_flight, write, any, {retry}, {quarantined, {}, opens_if_close}},
    {path_lost, in_flight, read, waiting, {retry}, {quarantined, requeue}},
    {path_lost, in_flight, read, gone, {retry}, {quarantined}},
    {beaten, in_flight, any, any, {retry}, {}, /*own_only=*/true},
    {path_back, quarantined, any, any, {retry}, {retry}},

    {swept, retry, any, waiting, {in_flight, send}, {in_flight, send}},
    {swept, retry, write, gone, {in_flight, settle}, {free}},
    {swept, retry, read, gone, {free}, {free}},

    {caller_left, in_flight, write, waiting, {in_flight}, {in_flight, {}, opens}},
    {caller_left, in_flight, read, waiting, {in_flight}, {in_flight}},
    {caller_left, retry, write, waiting, {retry}, {free}},
    {caller_left, retry, read, waiting, {free}, {free}},
    {caller_left, quarantined, write, waiting, {retry}, {quarantined, {}, opens}},
    {caller_left, quarantined, read, waiting, {free}, {quarantined}},

    {failed, in_flight, write, waiting, {in_flight, {}, scope}, {in_flight, {}, everything}},
    {failed, in_flight, read, waiting, {in_flight}, {in_flight}},
    {failed, retry, write, waiting, {retry, {}, scope}, {retry}},
    {failed, retry, read, waiting, {retry}, {retry}},
    {failed, quarantined, write, waiting, {retry, {}, scope}, {quarantined, {}, everything}},
    {failed, quarantined, read, waiting, {retry}, {quarantined}},

    {recovered, retry, any, waiting, {retry, renew}, {retry, renew}},
    {recovered, retry, any, gone, {free}, {free}},
    {recovered, quarantined, any, waiting, {retry, renew}, {quarantined, renew}},
    {recovered, quarantined, any, gone, {free}, {quarantined}},

    {lent, free, any, any, {free}, {quarantined}},
    {lent, retry, any, any, {retry}, {quarantined}},
    {lent, quarantined, any, any, {quarantined}, {quarantined}},
};

constexpr bool covers(const SlotRow& row, SlotEvent event, SlotState state, Direction direction,
                      Caller caller) {
  return row.event == event && row.state == state &&
         row.direction.value_or(direction) == direction && row.caller.value_or(caller) == caller;
}

}  // namespace slot_table

/// The step of a slot. None: that event cannot happen to it.
constexpr std::optional<SlotStep> next_step(SlotState state, SlotEvent event, Direction direction,
                                            Caller caller, Peer peer) {
  for (const SlotRow& row : slot_table::kRows) {
    if (!slot_table::covers(row, event, state, direction, caller)) continue;
    if (peer == Peer::own) return row.own;
    return row.own_only ? std::nullopt : std::optional{row.kernel};
  }
  return std::nullopt;
}

}  // namespace rtrs
