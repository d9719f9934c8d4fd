// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/call_table.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace rnbd::mirror {
namespace {

using wire::IoOperation;

/// The time that a leaving user waits for a silent member; then that member is dropped.
constexpr std::chrono::seconds kGrace{3};

Group::Kind kind_of(const Call& call) {
  switch (call.transfer.operation) {
    case IoOperation::read:
      return call.asks ? Group::Kind::extents : Group::Kind::read;
    case IoOperation::flush:
      return Group::Kind::flush;
    case IoOperation::write_zeroes:
      return Group::Kind::zero;
    default:
      return Group::Kind::write;
  }
}

}  // namespace

CallTable::CallTable(CallAnswers& answers, Withdraw withdraw)
    : answers_{answers}, withdraw_{std::move(withdraw)} {}

void CallTable::add(const CallPtr& call, Group* live) {
  const std::uint64_t number = next_++;
  calls_.emplace(number, call);
  if (live != nullptr) submit(number, call, *live);
}

void CallTable::submit_all(Group& group) {
  due_.clear();
  for (const auto& [number, call] : Calls{calls_}) submit(number, call, group);
}

void CallTable::submit_due(Group* live) {
  for (const std::uint64_t number : std::exchange(due_, {})) {
    const auto found = calls_.find(number);
    if (found == calls_.end()) continue;
    const CallPtr call = found->second;
    if (call->left)
      end(number, EINTR);
    else if (live != nullptr)
      submit(number, call, *live);
  }
}

void CallTable::submit(std::uint64_t number, const CallPtr& call, Group& group) {
  Transfer& transfer = call->transfer;
  if (transfer.operation == IoOperation::discard) {
    call->trims = true;
    shrink(transfer);
  }
  if (call->trims && (!trims_ || !zeroing_.fast || transfer.length == 0)) {
    call->rest_end = 0;
    return end(number, 0);
  }
  if (transfer.operation == IoOperation::write_zeroes || call->asks) cut(*call);
  const std::uint64_t end = transfer.offset + transfer.length;
  group.submit(
      kind_of(*call), number,
      {transfer.offset / wire::kSectorSize, (end + wire::kSectorSize - 1) / wire::kSectorSize});
}

void CallTable::shrink(Transfer& trim) const {
  const std::uint64_t granule = std::max<std::uint64_t>(zeroing_.granule, 1);
  const std::uint64_t begin = (trim.offset + granule - 1) / granule * granule;
  std::uint64_t end = trim.offset + trim.length;
  if (end != zeroing_.size) end = end / granule * granule;
  trim.operation = IoOperation::write_zeroes;
  trim.no_unmap = false;
  trim.fast = true;
  trim.length = end > begin ? end - begin : 0;
  if (trim.length != 0) trim.offset = begin;
}

void CallTable::cut(Call& call) const {
  Transfer& transfer = call.transfer;
  const std::uint64_t end = call.rest_end != 0 ? call.rest_end : transfer.offset + transfer.length;
  std::uint64_t piece_end = end;
  const std::uint64_t most = call.asks ? zeroing_.question : zeroing_.piece;
  if (most != 0) piece_end = std::min(end, (transfer.offset / most + 1) * most);
  transfer.length = piece_end - transfer.offset;
  call.rest_end = piece_end < end && !call.asks ? end : 0;
}

void CallTable::lend(std::uint64_t operation, Order order, Task& task) const {
  const CallPtr& call = calls_.at(operation);
  task.of = call;
  task.transfer = call->transfer;
  if (order == Order::write) task.transfer.fast = false;
}

void CallTable::zeroed_slowly(std::uint64_t operation) {
  if (const auto found = calls_.find(operation); found != calls_.end())
    trims_ = trims_ && !found->second->trims;
}

void CallTable::told(std::uint64_t operation, const std::vector<wire::Extent>& extents) {
  if (const auto found = calls_.find(operation); found != calls_.end())
    found->second->extents = extents;
}

bool CallTable::is_flush(std::uint64_t operation) const {
  const auto found = calls_.find(operation);
  return found != calls_.end() && found->second->transfer.operation == IoOperation::flush;
}

void CallTable::end(std::uint64_t operation, int error) {
  const auto ended = calls_.extract(operation);
  if (!ended) return;
  Call& call = *ended.mapped();
  if (error != 0 || call.rest_end == 0 || call.left) return answers_.end(call, error);
  call.transfer.offset += call.transfer.length;
  call.transfer.length = call.rest_end - call.transfer.offset;
  due_.push_back(next_);
  calls_.emplace(next_++, ended.mapped());
}

void CallTable::note_failure(std::uint64_t operation, int error) {
  if (const auto found = calls_.find(operation); found != calls_.end())
    found->second->failure = error;
}

void CallTable::end_failed() {
  for (const auto& [number, call] : Calls{calls_})
    if (call->failure != 0) end(number, call->failure);
}

void CallTable::cancel(const CallPtr& call, const Group* live) {
  cancel(std::ranges::find(std::as_const(calls_), call, &Calls::value_type::second), live);
}

/// The job may have ended meanwhile. Its lane has not collected it, so no later one has its memory.
void CallTable::cancel(const rtrs::LaneLoop::Job& job, const Group* live) {
  cancel(std::ranges::find_if(std::as_const(calls_),
                              [&](const auto& entry) { return entry.second->job == &job; }),
         live);
}

void CallTable::cancel(Calls::const_iterator found, const Group* live) {
  if (found == calls_.end()) return;
  const auto [number, call] = *found;
  if (live == nullptr) return end(number, EINTR);
  const auto now = Clock::now();
  if (!call->left) call->left = now;
  let_go(number, call, now);
}

void CallTable::cancel_all(int error, const Group* live) {
  for (const auto& [number, call] : Calls{calls_}) {
    if (live != nullptr)
      cancel(calls_.find(number), live);
    else
      end(number, error);
  }
}

void CallTable::let_go(Clock::time_point now) {
  for (const auto& [number, call] : Calls{calls_}) let_go(number, call, now);
}

/// Withdrawing may lose a member, and that may end this call or others.
void CallTable::let_go(std::uint64_t number, const CallPtr& call, Clock::time_point now) {
  if (!call->left || !calls_.contains(number)) return;
  const bool moves = call->transfer.into != nullptr || call->transfer.from != nullptr;
  if (moves && !withdraw_(number, now - *call->left > kGrace)) return;
  if (!calls_.contains(number)) return;
  call->take_over();
  answers_.end(*call, EINTR);
}

std::vector<wire::Extent> asked_part(const std::vector<wire::Extent>& told, std::uint64_t skipped,
                                     std::uint64_t length) {
  std::vector<wire::Extent> part;
  for (wire::Extent extent : told) {
    const std::uint64_t whole = extent.length;
    const std::uint64_t before = std::min(skipped, whole);
    skipped -= before;
    extent.length = std::min(whole - before, length);
    length -= extent.length;
    if (extent.length != 0) part.push_back(extent);
  }
  return part;
}

// ---- Calls and their answers --------------------------------------------------------------------

void Call::take_over() {
  const bool has_data = transfer.into != nullptr || transfer.from != nullptr;
  if (!has_data || !own.empty()) return;
  own.resize(transfer.length);
  if (transfer.from != nullptr) {
    std::memcpy(own.data(), transfer.from, transfer.length);
    transfer.from = own.data();
  } else {
    transfer.into = own.data();
  }
}

void CallAnswers::end(Call& call, int error) {
  const std::lock_guard lock{mutex_};
  if (call.ended) return;
  call.ended = true;
  call.error = error;
  if (call.lane == nullptr) return call.answered.notify_all();
  call.lane->end(*std::exchange(call.job, nullptr), error);
  if (std::ranges::find(lanes_, call.lane) == lanes_.end()) lanes_.push_back(call.lane);
}

void CallAnswers::publish() {
  for (MirrorLane* lane : lanes_) lane->publish();
  lanes_.clear();
}

}  // namespace rnbd::mirror
