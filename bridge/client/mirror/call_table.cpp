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

CallTable::CallTable(TaskSender& steward, LoseHolders lose_holders)
    : steward_{steward}, lose_holders_{std::move(lose_holders)} {}

Call& CallTable::make(CallUser& user, TaskSender& sender) {
  if (spare_.empty()) spare_.push_back(&memory_.emplace_back());
  Call& call = *spare_.back();
  spare_.pop_back();
  call.user = &user;
  call.sender = &sender;
  return call;
}

void CallTable::refuse(Call& call, int error) {
  call.error = error;
  settle(call);
}

void CallTable::number(Call& call) {
  call.number = next_++;
  calls_.add(call.number) = &call;
}

void CallTable::add(Call& call, Group* live) {
  number(call);
  if (live != nullptr) submit(call, *live);
}

void CallTable::hold(Call& call) {
  number(call);
  call.held = true;
  ++held_;
}

void CallTable::release(Group* live) {
  for (Call* call : all()) {
    if (!std::exchange(call->held, false)) continue;
    --held_;
    if (live != nullptr) submit(*call, *live);
  }
}

void CallTable::refuse_held(int error) {
  for (const Call* call : all())
    if (call->held) end(call->number, error);
}

std::vector<Call*> CallTable::all() const {
  std::vector<Call*> all;
  for (const auto& [number, call] : calls_) all.push_back(call);
  return all;
}

void CallTable::submit_all(Group& group) {
  due_.clear();
  for (Call* call : all()) {
    if (!call->held) submit(*call, group);
  }
}

void CallTable::submit_due(Group* live) {
  while (!due_.empty()) {
    const std::uint64_t number = due_.back();
    due_.pop_back();
    Call* const call = find(number);
    if (call == nullptr) continue;
    if (call->left)
      end(number, EINTR);
    else if (live != nullptr)
      submit(*call, *live);
  }
}

Call* CallTable::find(std::uint64_t operation) {
  const auto found = calls_.find(operation);
  return found != calls_.end() ? found->second : nullptr;
}

void CallTable::submit(Call& call, Group& group) {
  Transfer& transfer = call.transfer;
  if (transfer.operation == IoOperation::discard) {
    call.trims = true;
    shrink(transfer);
  }
  if (call.trims && (!trims_ || !zeroing_.fast || transfer.length == 0)) {
    call.rest_end = 0;
    return end(call.number, 0);
  }
  if (transfer.operation == IoOperation::write_zeroes || call.asks) cut(call);
  const std::uint64_t end = transfer.offset + transfer.length;
  // An operator has forced a disk that knows nothing of growth.
  if (zeroing_.size != 0 && end > zeroing_.size) {
    call.rest_end = 0;
    return this->end(call.number, EIO);
  }
  group.submit(
      kind_of(call), call.number,
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

void CallTable::lend(Call& call, Order order, Task& task) {
  task.transfer = call.transfer;
  if (order == Order::write) task.transfer.fast = false;
}

void CallTable::zeroed_slowly(std::uint64_t operation) {
  if (const Call* call = find(operation)) trims_ = trims_ && !call->trims;
}

void CallTable::told(std::uint64_t operation, const std::vector<wire::Extent>& extents) {
  if (Call* call = find(operation)) call->extents = extents;
}

bool CallTable::is_flush(std::uint64_t operation) {
  const Call* call = find(operation);
  return call != nullptr && call->transfer.operation == IoOperation::flush;
}

void CallTable::end(std::uint64_t operation, int error) {
  const auto ended = calls_.take(operation);
  if (!ended) return;
  Call& call = **ended;
  if (std::exchange(call.held, false)) --held_;
  if (error == 0 && call.rest_end != 0 && !call.left) {
    call.transfer.offset += call.transfer.length;
    call.transfer.length = call.rest_end - call.transfer.offset;
    number(call);
    return due_.push_back(call.number);
  }
  call.number = 0;
  call.error = error;
  settle(call);
}

void CallTable::collected(Task& task) {
  Call* const call = std::exchange(task.call, nullptr);
  if (call == nullptr) return;
  call->use.ended();
  settle(*call);
}

/// A lost member's command may still be on its way, as the thread that carries it does not know
/// yet. Nobody has the memory back before.
void CallTable::settle(Call& call) {
  if (!call.use.may_return()) return;
  if (call.number != 0) return call.left ? leave(call) : void();
  answer(call, call.error);
  call = {};
  spare_.push_back(&call);
}

void CallTable::answer(Call& call, int error) {
  if (CallUser* const user = std::exchange(call.user, nullptr)) user->answered(call, error);
}

void CallTable::leave(Call& call) {
  if (call.user == nullptr) return;
  call.take_over();
  call.sender = &steward_;
  answer(call, EINTR);
}

void CallTable::note_failure(std::uint64_t operation, int error) {
  if (Call* call = find(operation)) call->failure = error;
}

void CallTable::end_failed() {
  for (Call* call : all())
    if (call->failure != 0) end(call->number, call->failure);
}

void CallTable::cancel(Call& call, const Group* live) {
  if (live == nullptr || call.held) return end(call.number, EINTR);
  if (!call.left) call.left = Clock::now();
  if (!call.moves_data() || call.use.may_return()) leave(call);
}

void CallTable::cancel(const rtrs::LaneLoop::Job& job, const Group* live) {
  for (Call* call : all())
    if (call->job == &job && call->user != nullptr) return cancel(*call, live);
}

void CallTable::cancel_all(int error, const Group* live) {
  for (Call* call : all()) {
    if (live != nullptr)
      cancel(*call, live);
    else
      end(call->number, error);
  }
}

/// The loss of a member may end this call or others, but frees none.
void CallTable::let_go(Clock::time_point now) {
  for (const Call* call : all())
    if (call->number != 0 && call->left && call->user != nullptr && now - *call->left > kGrace)
      lose_holders_(call->number);
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
  if (!moves_data() || !own.empty()) return;
  own.resize(transfer.length);
  if (transfer.from != nullptr) {
    std::memcpy(own.data(), transfer.from, transfer.length);
    transfer.from = own.data();
  } else {
    transfer.into = own.data();
  }
}

}  // namespace rnbd::mirror
