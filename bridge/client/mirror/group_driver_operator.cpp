// SPDX-License-Identifier: BSD-3-Clause
// An operator's orders to a mirror.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <utility>

#include "bridge/client/mirror/group_driver.hpp"

namespace rnbd::mirror {
namespace {

tl::unexpected<Failure> refuse(int error, std::string why) {
  return tl::unexpected(Failure{error, std::move(why)});
}

}  // namespace

GroupDriver::Done GroupDriver::force(const std::string& server, bool sure, bool split,
                                     const MirrorStatus& known) {
  const auto member = links_.named(server);
  if (!member) return tl::unexpected(member.error());
  if (members_[*member].is_vote)
    return refuse(EINVAL, "that server has no copy of the disk; force one that has");
  if (live_group() != nullptr)
    return refuse(EALREADY, "the mirror is attached, so nothing has to be forced");
  if (group_ != nullptr && group_->record(*member).blank)
    return refuse(EINVAL,
                  "its disk is new in this mirror, and has nothing of it; force a server that was "
                  "in step");
  if (!sure) return refuse(EPERM, dangers_of_forcing(*member, known));
  if (const std::string used = links_.used_beside(*member); !used.empty() && !split)
    return refuse(EBUSY,
                  "another client uses the mirror, or may use it: " + used +
                      " has said that one writes to it, or has not answered yet. Stop that client, "
                      "and this one can go on with the same servers. With --force --split the disk "
                      "goes on here regardless, and all that the other client writes is lost");
  const auto refuse_now = [&] {
    return refuse(ENXIO, "that server cannot be used now: " + why_not_attached(known));
  };
  if (group_ == nullptr || !group_->record(*member).told) return refuse_now();
  if (const std::string asked = asked_beside(*member, known); !asked.empty() && !split)
    return refuse(EBUSY,
                  "nothing is known yet of " + asked +
                      ", which may have newer data: repeat it when `mirror status` says what is "
                      "there. With --force --split the disk goes on regardless");
  if (!group_->force(*member)) return refuse_now();
  forced_ = true;
  report_.say(rtrs::LogLevel::warning,
              "an operator has it go on with the disk of " + links_.server(*member) + " only");
  return {};
}

GroupDriver::Done GroupDriver::discard(const std::string& server) {
  const auto number = links_.named(server);
  if (!number) return tl::unexpected(number.error());
  if (live_group() == nullptr)
    return refuse(EBUSY,
                  "the mirror is not attached, so that nobody knows whether the others have "
                  "everything; start the servers that it misses, or see mirror force");
  Member& member = members_[*number];
  member.discarded = true;
  if (!group_->discard(*number)) {
    member.discarded = false;
    return refuse(EBUSY,
                  "it has the only good copy of the disk, or the others are about to record that "
                  "they go on without another server, for which they need it; then repeat it");
  }
  if (group_->is_over()) {  // a view that was being recorded needed it
    member.discarded = false;
    member.link->renew(nullptr);
    return refuse(EBUSY, "the others cannot go on without it now, and attach anew; then repeat it");
  }
  if (member.session.is_open()) drop(*number);
  member.link->let_go(nullptr);
  member.link->set_trouble("discarded by an operator; mirror add puts another server in its place");
  return {};
}

GroupDriver::Done GroupDriver::add(const rtrs::PathAddress& path, bool overwrite) {
  for (unsigned i = 0; i < members_.size(); ++i) {
    if (members_[i].discarded || links_.server(i) != host_and_port(path)) continue;
    const bool waits =
        live_group() != nullptr && group_->progress(i).standing == Membership::Standing::waiting;
    if (!waits || !overwrite || members_[i].overwrite || members_[i].is_vote)
      return refuse(EEXIST, "that server is a member already");
    members_[i].overwrite = true;
    lost(i);
    return {};
  }
  const auto place = std::ranges::find_if(members_, &Member::discarded);
  if (place == members_.end()) return refuse(ENOSPC, "all places of the mirror are taken");
  place->discarded = false;
  place->overwrite = overwrite;
  place->vote_pause = {};
  place->link->go_to(path);
  return {};
}

// ---- Verify -------------------------------------------------------------------------------------

GroupDriver::Done GroupDriver::verify(const std::string& from) {
  unsigned source = kMaxMembers;
  if (!from.empty()) {
    const auto number = links_.named(from);
    if (!number) return tl::unexpected(number.error());
    source = *number;
  }
  if (live_group() == nullptr)
    return refuse(EBUSY, "the mirror is not attached, so there is nothing to compare");
  if (group_->verification().is_running())
    return refuse(EALREADY,
                  "the copies are being compared already; `mirror verify stop` ends that");
  if (size(group_->copies()) < 2)
    return refuse(EBUSY, "only one server is in step, so there is nothing to compare");
  if (source != kMaxMembers && !has(group_->copies(), source))
    return refuse(EBUSY, "that server is not in step, so its data are no source");
  if (!group_->verify(source)) return refuse(EBUSY, "the one before is about to end; try again");
  verify_ = {.from = from};
  report_.begin_verify(from);
  report_verify();
  return {};
}

GroupDriver::Done GroupDriver::end_verify() {
  if (group_ == nullptr || !group_->verification().is_running())
    return refuse(ENOENT, "no copies are being compared");
  group_->end_verify();
  report_verify();
  return {};
}

void GroupDriver::differs(const Difference& found) {
  const auto names = [this](MemberSet set) {
    std::string text;
    for (unsigned i = 0; i < members_.size(); ++i)
      if (has(set, i)) text += (text.empty() ? "" : " and ") + links_.server(i);
    return text;
  };
  const Range range = found.different != 0
                          ? copies_.differing(found.operation, found.different, found.reference)
                          : found.range;
  std::string alike;
  for (MemberSet rest = found.different; size(rest) > 1;) {
    const MemberSet same =
        copies_.same(found.operation, rest, static_cast<unsigned>(std::countr_zero(rest)));
    if (size(same) > 1) alike += (alike.empty() ? "" : ", ") + names(same);
    rest = static_cast<MemberSet>(rest & ~same);
  }
  report_.differs(range, links_.server(found.reference), names(found.different), alike,
                  names(found.unreadable));
}

/// A new group knows nothing of the comparison that the one before has begun.
void GroupDriver::report_verify() {
  Verification& known = verify_.pass;
  const bool was_running = known.is_running();
  const Verification none;
  const Verification& now = group_ != nullptr ? group_->verification() : none;
  verify_.cut_off = verify_.cut_off || (was_running && now.state == Verification::State::none);
  if (now.state != Verification::State::none) known = now;
  if (verify_.cut_off && was_running) known.state = Verification::State::stopped;
  const std::uint32_t left = shape_.regions - known.region;
  using Standing = Membership::Standing;
  verify_pace_.add(Clock::now(), {known.is_running() ? Standing::resync : Standing::in_step, left});
  verify_.pace = verify_pace_.regions_per_second();
  if (was_running && !known.is_running()) report_.end_verify(known);
}

// ---- Dissolve -----------------------------------------------------------------------------------

void GroupDriver::dissolve(const std::string& server, std::function<void(Dissolved)> then) {
  const auto member = links_.named(server);
  if (member && links_.uri_of(*member) == dissolved_into_) return then(dissolved_into_);
  const auto wrong = [&]() -> std::optional<Failure> {
    if (!member) return member.error();
    if (leaving_) return Failure{EALREADY, "the mirror is being dissolved already"};
    if (live_group() == nullptr)
      return Failure{EBUSY,
                     "the mirror is not attached, so that nobody knows whether that server has "
                     "everything; see `mirror status`"};
    if (!has(group_->copies(), *member))
      return Failure{EBUSY, "that server is not in step, so its disk lacks writes"};
    return {};
  }();
  if (wrong) return then(tl::unexpected(*wrong));
  report_.say(rtrs::LogLevel::warning, "an operator dissolves it; only " + server + " goes on");
  leaving_.emplace(*member, std::move(then));
}

/// Requests of before are answered first.
void GroupDriver::try_to_dissolve() {
  if (!leaving_ || leaving_->begun || !calls_.all_held() || live_group() == nullptr) return;
  leaving_->begun = group_->dissolve(leaving_->member);
  if (!leaving_->begun) end_dissolve({EBUSY, "that server is not in step any more"});
}

/// The members go on as a mirror, or that is over for another reason.
void GroupDriver::end_dissolve(const Failure& failure) {
  if (!leaving_) return;
  const Leaving ended = *std::exchange(leaving_, {});
  ended.then(tl::unexpected(failure));
  calls_.release(live_group());
}

void GroupDriver::take_outcome() {
  if (!leaving_ || !leaving_->outcome) return;
  if (*leaving_->outcome == ECANCELED)
    return end_dissolve(
        {EIO, "the mirror goes on: that server was lost; see its log, and repeat it"});
  if (*leaving_->outcome != 0)
    return end_dissolve({EIO,
                         "that server was told to take its record away, and its answer is missing "
                         "or an error: it has a disk of its own, or is the only member; see its "
                         "log and `mirror status`, and repeat it"});
  const Leaving ended = *std::exchange(leaving_, {});
  dissolved_into_ = links_.uri_of(ended.member);
  superseded_ = true;
  ended.then(dissolved_into_);
}

}  // namespace rnbd::mirror
