// SPDX-License-Identifier: BSD-3-Clause
// The requests of a mirror's users, and the group's commands on their way to members.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/client/mirror/mirror.hpp"

namespace rnbd::mirror {
namespace {

using wire::IoOperation;

/// The time that a leaving user waits for a silent member; then that member is dropped.
constexpr std::chrono::seconds kGrace{3};

Group::Kind kind_of(IoOperation operation) {
  if (operation == IoOperation::read) return Group::Kind::read;
  return operation == IoOperation::flush ? Group::Kind::flush : Group::Kind::write;
}

Range sectors_of(const Transfer& transfer) {
  const std::uint64_t end = transfer.offset + transfer.length;
  return {transfer.offset / wire::kSectorSize, (end + wire::kSectorSize - 1) / wire::kSectorSize};
}

}  // namespace

// ---- Calls --------------------------------------------------------------------------------------

int Mirror::run(const Transfer& transfer, const Interrupt& interrupt) {
  const auto call = std::make_shared<Call>();
  call->transfer = transfer;
  door_.post([this, call] { accept(call); });
  const auto leave = [&] { door_.post([this, call] { give_up(call); }); };
  return answers_.wait(*call, interrupt, leave);
}

std::unique_ptr<rtrs::LaneLoop> Mirror::take_lane(unsigned /*lane*/) {
  return std::make_unique<MirrorLane>(shared_from_this());
}

void Mirror::take(MirrorLane& lane, const std::vector<rtrs::LaneLoop::Job*>& jobs) {
  door_.arrive(lane, jobs);
}

/// It may end meanwhile, and its memory be that of a later job.
void Mirror::give_up(rtrs::LaneLoop::Job& job) {
  door_.post([this, &job, newest = door_.newest()] {
    const auto found = std::ranges::find_if(calls_, [&](const auto& entry) {
      return entry.second->job == &job && entry.second->number <= newest;
    });
    if (found != calls_.end()) give_up(found->first, *found->second);
  });
}

void Mirror::accept(const CallPtr& call) {
  if (superseded_ || stop_by_) return answers_.end(*call, EIO);
  const std::uint64_t id = next_call_++;
  calls_.emplace(id, call);
  last_request_ = Clock::now();
  if (group_ != nullptr && group_->live()) submit(id, *call);
}

void Mirror::submit(std::uint64_t id, Call& call) {
  group_->submit(kind_of(call.transfer.operation), id, sectors_of(call.transfer));
}

/// Only while the group is not live: it would go on with them.
void Mirror::end_all(int error) {
  for (auto& [id, call] : std::map{calls_}) {
    if (group_ != nullptr && group_->live()) {
      give_up(id, *call);
    } else {
      answers_.end(*call, error);
      calls_.erase(id);
    }
  }
}

void Mirror::done(std::uint64_t operation) {
  if (operation >= Group::kOwn) {
    if (const auto own = own_.extract(operation)) rest(own.mapped());
    return;
  }
  const auto found = calls_.find(operation);
  if (found == calls_.end()) return;
  const bool flush = found->second->transfer.operation == IoOperation::flush;
  answers_.end(*found->second, flush && std::exchange(lossy_, false) ? EIO : 0);
  calls_.erase(found);
}

void Mirror::failed(std::uint64_t operation, int error) {
  if (operation >= Group::kOwn) {
    own_.erase(operation);
    return report_.say(
        rtrs::LogLevel::error,
        "a region cannot be read from any server in step, so the others do not get it; if "
        "they have better copies of the disk, stop this client and see docs/mirror.md");
  }
  const auto call = calls_.extract(operation);
  if (call) answers_.end(*call.mapped(), error);
}

void Mirror::give_up(const CallPtr& call) {
  const auto found =
      std::ranges::find_if(calls_, [&](const auto& entry) { return entry.second == call; });
  if (found != calls_.end()) give_up(found->first, *call);
}

/// Its user leaves. The group finishes its orders for the call without the user's memory.
void Mirror::give_up(std::uint64_t id, Call& call) {
  if (group_ == nullptr || !group_->live()) {
    const auto kept = calls_.extract(id);
    return answers_.end(call, EINTR);
  }
  if (!call.left) call.left = Clock::now();
  free_of(id, call);
}

/// Lets a leaving user go, once nothing refers to its memory.
void Mirror::free_of(std::uint64_t id, Call& call) {
  if (!call.left) return;
  const bool moves = call.transfer.operation != IoOperation::flush;
  const bool by_force = Clock::now() - *call.left > kGrace;
  for (unsigned i = 0; i < members_.size() && moves; ++i) {
    if (!members_[i].session.holds(id)) continue;
    if (!by_force) return;
    members_[i].link->set_trouble("it has not answered for long, while its client had to leave");
    lost(i);
  }
  call.take_over();
  answers_.end(call, EINTR);
}

// ---- Commands on their way ----------------------------------------------------------------------

void Mirror::send(const Command& command) {
  MemberSession& session = members_[command.member].session;
  if (!session.is_open()) return;
  if (command.operation >= Group::kOwn && !own_.contains(command.operation)) {
    const std::uint64_t sectors = command.range.end - command.range.begin;
    own_[command.operation] = {.began = Clock::now(), .length = sectors * wire::kSectorSize};
  }
  TaskPtr task = tasks_.take(command, turn_);
  const OpenMember& open = session.open();
  switch (command.order) {
    case Order::read:
    case Order::write:
    case Order::copy:
    case Order::flush:
      task->transfer = transfer_for(command, *task);
      break;
    default: {
      const std::size_t room = open.geometry().max_io;
      const bool pulls = command.order == Order::pull;
      task->message.emplace(command, shape_, open.device->handle(), room,
                            pulls ? links_.uri_of(command.source) : std::string{});
    }
  }
  session.start(std::move(task));
}

Transfer Mirror::transfer_for(const Command& command, Task& task) {
  if (command.order == Order::flush) return {.operation = IoOperation::flush};
  if (command.operation < Group::kOwn) {
    const auto& call = calls_.at(command.operation);
    task.of = call;
    return call->transfer;
  }
  Transfer transfer;
  transfer.offset = command.range.begin * wire::kSectorSize;
  transfer.length = (command.range.end - command.range.begin) * wire::kSectorSize;
  auto& memory = own_[command.operation].memory;
  if (memory == nullptr) memory = std::make_shared<Bytes>(transfer.length);
  task.of = memory;
  if (command.order == Order::read) {
    transfer.into = memory->data();
    return transfer;
  }
  const bool zeroes = only_zeroes(*memory);
  transfer.operation = zeroes ? IoOperation::write_zeroes : IoOperation::write;
  transfer.from = zeroes ? nullptr : memory->data();
  transfer.copy = command.order == Order::copy;
  return transfer;
}

void Mirror::finished(TaskPtr task) {
  Member& member = members_[task->member];
  if (group_ != nullptr && member.session.is_current(*task)) {
    Answer answer;
    if (task->message) answer = task->message->answer();
    answer.tag = task->tag;
    answer.error = member.session.outcome(*task);
    if (answer.error == EOPNOTSUPP && task->transfer.operation == IoOperation::write_zeroes) {
      task->transfer.operation = IoOperation::write;
      return member.session.start(std::move(task));
    }
    if (task->message && !task->message->complaint().empty())
      member.link->set_trouble(task->message->complaint());
    if (task->order == Order::claim && answer.error == 0) claimed(task->member, answer.claimed);
    const auto call = calls_.find(task->operation);
    if (answer.error != 0 && answer.error != ESTALE && call != calls_.end())
      call->second->failure = answer.error;
    member.failure = answer.error;
    if (!superseded_) group_->answer(answer);
    member.failure = 0;
  }
  tasks_.give_back(std::move(task));
}

void Mirror::claimed(unsigned number, const Claimed& answer) {
  Member& member = members_[number];
  member.link->set_trouble("");
  member.lost_power = answer.lost_power;
  superseded_ = superseded_ || (last_term_ != 0 && answer.view.id.term > last_term_);
}

}  // namespace rnbd::mirror
