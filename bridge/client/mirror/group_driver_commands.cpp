// SPDX-License-Identifier: BSD-3-Clause
// The group's commands on their way to members, and the ends of its operations.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/client/mirror/group_driver.hpp"

namespace rnbd::mirror {

namespace {

/// Whole sectors of zeroes.
void tell_zeroes(const std::vector<wire::Extent>& extents, Answer& answer) {
  std::uint64_t begin = 0, end = 0;  // bytes, of zeroes
  const auto add = [&] {
    const Range zeroes{(begin + wire::kSectorSize - 1) / wire::kSectorSize,
                       end / wire::kSectorSize};
    if (zeroes.end > zeroes.begin) answer.zeroes.push_back(zeroes);
  };
  std::uint64_t told = 0;
  for (const wire::Extent& extent : extents) {
    const std::uint64_t place = std::exchange(told, told + extent.length);
    if ((extent.flags & wire::kExtentZero) == 0) continue;
    if (place != end) add(), begin = place;
    end = told;
  }
  add();
  answer.told = told / wire::kSectorSize;
}

}  // namespace

void GroupDriver::done(std::uint64_t operation) {
  if (operation >= Group::kOwn) return copies_.done(operation, !calls_.empty(), Clock::now());
  const bool fails = calls_.is_flush(operation) && std::exchange(lossy_, false);
  calls_.end(operation, fails ? EIO : 0);
}

void GroupDriver::failed(std::uint64_t operation, int error) {
  if (operation < Group::kOwn) return calls_.end(operation, error);
  const auto range = copies_.failed(operation, Clock::now());
  if (range && error == EIO) report_.unreadable(*range);
  if (range && error != EIO) report_.unequal(*range, error);
}

void GroupDriver::lose_holders(std::uint64_t operation) {
  for (unsigned i = 0; i < members_.size(); ++i) {
    const bool holds = std::ranges::any_of(senders_, [&](TaskSender* sender) {
      return (*sender)[i].holds(operation, members_[i].session);
    });
    if (!holds) continue;
    members_[i].link->set_trouble("it has not answered for long, while its client had to leave");
    lost(i);
  }
}

/// The steward, if the session has no lane for the user's thread, or an earlier thread's commands
/// are still on that one.
TaskSender& GroupDriver::carrier_of(const Call* call, unsigned member) {
  if (call == nullptr) return steward_;
  TaskSender& own = *call->sender;
  const bool exists = own.lane() < members_[member].session.open().session->lanes() - 1;
  const bool is_taken = std::ranges::any_of(senders_, [&](TaskSender* sender) {
    return sender != &own && sender->lane() == own.lane() && (*sender)[member].is_used();
  });
  return exists && !is_taken ? own : steward_;
}

void GroupDriver::send(const Command& command) {
  if (command.order == Order::view) own_terms_.proposed(command.view.id.term);
  shape_.size = group_->disk_size();
  shape_.regions = wire::MirrorShape{0, 0, shape_.region_shift, shape_.size}.regions();
  if (command.order == Order::confirm) own_terms_.in_force(command.view.id.term);
  MemberSession& session = members_[command.member].session;
  if (!session.is_open()) return;
  const bool own = command.operation >= Group::kOwn;
  if (own) copies_.begin(command, turn_);
  TaskPtr task = tasks_.take(command, turn_);
  const OpenMember& open = session.open();
  task->epoch = session.epoch();
  task->call = own ? nullptr : calls_.find(command.operation);
  if (task->call != nullptr) task->call->use.began();
  switch (command.order) {
    case Order::flush:
      task->transfer.operation = wire::IoOperation::flush;
      break;
    case Order::clear:
      task->transfer = {.operation = wire::IoOperation::write_zeroes,
                        .offset = command.range.begin * wire::kSectorSize,
                        .length = (command.range.end - command.range.begin) * wire::kSectorSize,
                        .copy = true,
                        .fast = true};
      break;
    case Order::read:
    case Order::write:
    case Order::zero:
    case Order::copy:
      own ? copies_.lend(command, open.geometry().block, *task)
          : CallTable::lend(*task->call, command.order, *task);
      break;
    default: {
      const std::size_t room = open.geometry().max_io;
      const bool pulls = command.order == Order::pull;
      task->message.emplace(command, shape_, open.device->handle(), room,
                            pulls ? links_.uri_of(command.source) : std::string{});
    }
  }
  TaskSender& carrier = carrier_of(task->call, command.member);
  carrier[command.member].add(std::move(task));
  carrier.call_up();
}

void GroupDriver::finished(MemberLane& lane, TaskPtr task) {
  Member& member = members_[task->member];
  const bool counts = group_ != nullptr && member.session.is_current(*task);
  Answer answer{.tag = task->tag, .error = counts ? lane.outcome(*task) : 0};
  const bool slowly =
      task->transfer.operation == wire::IoOperation::write_zeroes && answer.error == EOPNOTSUPP;
  if (slowly && task->order != Order::zero && task->order != Order::clear) {
    task->transfer.operation = wire::IoOperation::write;
    lane.add(std::move(task));
    return;
  }
  calls_.collected(*task);
  if (counts) {
    if (task->message) {
      answer = task->message->answer();
      answer.tag = task->tag;
      answer.error = lane.outcome(*task);
    }
    if (slowly) calls_.zeroed_slowly(task->operation);
    const bool unknown = lacks_hint(task->order, answer.error);
    if (task->order == Order::extents && (answer.error == 0 || unknown)) {
      calls_.told(task->operation, task->message->extents());
      tell_zeroes(task->message->extents(), answer);
    }
    if (task->message && !task->message->complaint().empty())
      member.link->set_trouble(task->message->complaint());
    if (task->order == Order::claim && answer.error != 0) member.has_disk = false;
    if (task->order == Order::claim) judge(task->member, answer);
    if (task->order == Order::claim && answer.error == EIDRM) found_dissolved(task->member);
    if (task->order == Order::claim && task->message->other_shift() != 0)
      follow_regions(task->message->other_shift());
    // No operation is under way that uses it there.
    if (answer.error == 0 && answer.claimed.size != 0)
      member.session.open().device->grow_to(answer.claimed.size);
    if (task->order == Order::claim && answer.error == 0) claimed(task->member, answer.claimed);
    if (answer.error == 0) member.shown = std::max(member.shown, task->began);
    if (answer.error != 0 && answer.error != ESTALE && !slowly && !unknown)
      calls_.note_failure(task->operation, answer.error);
    const bool keeps_size =
        task->order == Order::grow && answer.error != EIO && answer.error != ESTALE;
    const bool harmless = unknown || keeps_size || task->order == Order::room;
    if (answer.error != 0 && !slowly && !harmless) {
      member.failure = answer.error;
      member.bad_disk = !task->message && answer.error != ESTALE;
    }
    if (member.is_vote && answer.error != 0 && answer.error != ESTALE) member.vote_pause.failed();
    if (member.is_vote && answer.error == 0 && task->order == Order::view)
      member.vote_pause.recorded();
    if (!superseded_) group_->answer(answer);
    if (task->order == Order::claim && answer.error == 0) tell_of_disk(task->member);
  }
  tasks_.give_back(std::move(task));
}

/// One record must not raise the term so far that others are shut out.
void GroupDriver::judge(unsigned number, Answer& answer) {
  if (answer.error == ERANGE) return shut_out(number);
  const std::uint64_t term = answer.claimed.view.id.term;
  const bool told = answer.error == 0 || (answer.error == ESTALE && term != 0);
  if (!told) return;
  record_terms_.note(number, term);
  const std::uint64_t promised = answer.claimed.promised;
  const unsigned other = record_terms_.against(number, promised);
  const bool was_served = group_->live() || own_terms_.in_force() != 0;
  const std::uint64_t known =
      was_served ? std::max(group_->term(), own_terms_.in_force()) : std::uint64_t{0};
  if (other == kMaxMembers || is_near(promised, known)) return;
  answer.error = EPROTO;
  members_[number].link->set_trouble(
      words_of_doubt(promised, links_.server(other), record_terms_.of(other)));
}

/// It has refused the term as too far ahead.
void GroupDriver::shut_out(unsigned number) {
  const std::uint64_t term = group_->term();
  const std::uint64_t own = record_terms_.of(number);
  if (!record_terms_.fell_behind(number, term)) return;
  const MemberSet knowing = record_terms_.near(term);
  std::string others;
  for (unsigned i = 0; i < members_.size(); ++i)
    if (has(knowing, i)) others += (others.empty() ? "" : " and ") + links_.server(i);
  members_[number].link->set_trouble(words_of_shut_out(own, term, others, size(knowing) > 1));
  if (!group_->live() && size(knowing) < 2) news_ = News::doubted;
}

/// The others wait for what that disk has had since. If they go on nevertheless, an operator has
/// forced them to.
void GroupDriver::found_dissolved(unsigned number) {
  if (group_->live()) return;
  dissolved_into_ = links_.uri_of(number);
  superseded_ = true;
}

void GroupDriver::claimed(unsigned number, const Claimed& answer) {
  Member& member = members_[number];
  member.link->set_trouble("");
  member.lost_power = answer.lost_power;
  // A session that has the disk already has kept other clients from it since.
  if (!member.is_vote && !std::exchange(member.has_disk, true)) claimed_at_ = Clock::now();
  superseded_ = superseded_ || own_terms_.superseded_by(answer.view.id.term);
}

void GroupDriver::tell_of_disk(unsigned number) {
  if (live_group() == nullptr) return;
  MemberLink& link = *members_[number].link;
  if (group_->is_set_back(number))
    report_.say(rtrs::LogLevel::warning,
                link.server() + " was set back to an earlier state, as by a snapshot" +
                    (members_[number].is_vote ? "" : "; it gets a full copy"));
  if (group_->displaced(number))
    link.set_trouble(
        "another disk has its place in the mirror, so nothing is copied to it: name the server of "
        "that one, as `mirror add` has printed it; to use this disk anew, `mirror discard` it "
        "here, and remove its record "
        "(docs/mirror.md, \"A server was replaced, or set back\")");
}

}  // namespace rnbd::mirror
