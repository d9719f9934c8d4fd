// SPDX-License-Identifier: BSD-3-Clause
// The turns of a mirror's threads, and the steward's loop.
#include "bridge/client/mirror/group_driver.hpp"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <span>
#include <utility>

#include "bridge/client/mirror/mirror_config.hpp"

namespace rnbd::mirror {
namespace {

constexpr std::chrono::milliseconds kTick{100};
/// The wait for silent members, until the group goes on without them.
constexpr std::chrono::seconds kPatience{3};
constexpr std::chrono::seconds kCoolPeriod{5};
constexpr std::chrono::seconds kPartWithin{2};
constexpr unsigned kMostLanes = ~0U;

}  // namespace

GroupDriver::GroupDriver(const ClientConfig& config, MemberLinks& links, rtrs::Log log)
    : config_{config},
      links_{links},
      members_(servers_of(config)),
      report_{config.device, std::move(log), members_.size()},
      record_terms_{members_.size()},
      steward_{kMostLanes, members_.size()},
      senders_{&steward_},
      calls_{steward_, [this](std::uint64_t operation) { lose_holders(operation); }},
      copies_{settings_of(config).resync_rate} {
  for (unsigned i = 0; i < members_.size(); ++i) {
    members_[i].link = &links_[i];
    members_[i].overwrite = settings_of(config).create_copy;
    members_[i].is_vote = i == config.servers.size();
  }
}

void GroupDriver::loop() {
  Lock lock{mutex_};
  next_tick_ = not_live_since_ = Clock::now();
  while (!stop_by_ || !may_stop(Clock::now())) {
    wait(lock);
    if (Clock::now() >= next_tick_) look_at_sessions(lock);
    do {
      inherit();
      for_own([this](TaskSender& sender) {
        begin_turn(sender);
        serve(sender);
      });
      settle();
      if (copies_.resume(turn_) && live_group() != nullptr) group_->work();
      if (turn_ >= next_tick_) tick();
      for_own([this](TaskSender& sender) { prepare(sender); });
      bury();
      for_own([](TaskSender& sender) { sender.end_turn(); });
      lock.unlock();
      bool more = false;
      for_own([&more](TaskSender& sender) {
        sender.send();
        more = sender.collect() || more;
      });
      lock.lock();
      if (!more && news_ == News::none) break;
    } while (true);
  }
  part(lock);
}

void GroupDriver::stop() {
  if (leaving_ && !leaving_->begun) {
    calls_.refuse_held(EIO);
    end_dissolve({EINTR, "the program ends"});
  }
  calls_.cancel_all(EIO, leaving_ ? nullptr : live_group());
  stop_by_ = Clock::now() + kPartWithin;
  steward_.call_up();
}

void GroupDriver::accept(Call& call) {
  if (superseded_ || stop_by_) return calls_.refuse(call, EIO);
  if (leaving_) return calls_.hold(call);
  copies_.requested(turn_);
  calls_.add(call, live_group());
}

int GroupDriver::run(const Transfer& transfer, std::vector<wire::Extent>* extents,
                     const rtrs::Interrupt& interrupt) noexcept {
  constexpr std::chrono::milliseconds kAsk{250};
  WaitingUser user;
  Lock lock{mutex_};
  turn_ = Clock::now();
  Call& call = calls_.make(user, steward_);
  call.transfer = transfer;
  call.asks = extents != nullptr;
  accept(call);
  finish();
  bool left = false;
  while (!user.changed.wait_for(lock, kAsk, [&] { return user.ended; })) {
    lock.unlock();
    const bool leaves = !left && interrupt();
    lock.lock();
    if (!leaves || user.ended) continue;
    left = true;
    calls_.cancel(call, live_group());
    finish();
  }
  if (extents != nullptr) *extents = std::move(user.extents);
  return user.error;
}

// ---- For users and people ----------------------------------------------------------------------

GroupDriver::Wait GroupDriver::wait(Clock::time_point until, const rtrs::Interrupt& interrupt) {
  constexpr std::chrono::milliseconds kAsk{200};
  Lock lock{mutex_};
  const auto settled = [&] {
    return live_group() != nullptr || !dead_.empty() || Clock::now() >= until;
  };
  while (!changed_.wait_until(lock, std::min(until, Clock::now() + kAsk), settled)) {
    lock.unlock();
    if (interrupt()) return Wait::interrupted;
    lock.lock();
  }
  if (!dead_.empty()) return Wait::dead;
  return live_group() != nullptr ? Wait::live : Wait::late;
}

DeviceGeometry GroupDriver::geometry() const {
  const std::lock_guard lock{mutex_};
  return geometry_;
}

std::string GroupDriver::dead() const {
  const std::lock_guard lock{mutex_};
  return dead_;
}

bool GroupDriver::dissolved() const {
  const std::lock_guard lock{mutex_};
  return !dissolved_into_.empty();
}

MirrorStatus GroupDriver::status() {
  const std::lock_guard lock{mutex_};
  return report();
}

// ---- Turns --------------------------------------------------------------------------------------

void GroupDriver::begin_turn(TaskSender& sender) {
  sender.begin_turn();
  turn_ = Clock::now();
}

/// Takes the answers to the thread's commands in. An answer may end the session of others that have
/// ended as well.
void GroupDriver::serve(TaskSender& sender) {
  for (unsigned i = 0; i < members_.size(); ++i) {
    sender[i].take_ended(ended_);
    for (Task* task : ended_) finished(sender[i], sender[i].take(*task));
    ended_.clear();
  }
}

/// Commands of ended sessions are cancelled before others are sent.
void GroupDriver::prepare(TaskSender& sender) {
  finish();
  part_with_ended(sender);
  for (unsigned i = 0; i < members_.size(); ++i) sender[i].prepare(members_[i].session);
}

void GroupDriver::part_with_ended(TaskSender& sender) {
  for (unsigned i = 0; i < members_.size(); ++i) sender[i].part(members_[i].session, gone_);
  for (TaskPtr& task : gone_) {
    calls_.collected(*task);
    tasks_.give_back(std::move(task));
  }
  gone_.clear();
}

/// The steward handles what ends groups.
void GroupDriver::finish() {
  calls_.submit_due(live_group());
  const bool leaves = leaving_ && (leaving_->outcome || (!leaving_->begun && calls_.all_held()));
  if (news_ != News::none || superseded_ || leaves) steward_.call_up();
}

void GroupDriver::add(TaskSender& sender) {
  const std::lock_guard lock{mutex_};
  senders_.push_back(&sender);
}

/// After the steward's end all sessions have ended, so nothing is left for it.
void GroupDriver::remove(std::unique_ptr<TaskSender> sender) noexcept {
  sender->collect();
  const std::lock_guard lock{mutex_};
  begin_turn(*sender);
  serve(*sender);
  finish();
  part_with_ended(*sender);
  for (unsigned i = 0; i < members_.size(); ++i) {
    (*sender)[i].give_up_unsent(gone_);
    for (TaskPtr& task : std::exchange(gone_, {})) steward_[i].add(std::move(task));
  }
  sender->end_turn();
  left_.push_back(std::move(sender));
  steward_.call_up();
}

/// Nobody adds commands to them any more, as their users have left.
void GroupDriver::inherit() {
  std::ranges::move(std::exchange(left_, {}), std::back_inserter(inherited_));
}

void GroupDriver::bury() {
  std::erase_if(inherited_, [this](const std::unique_ptr<TaskSender>& sender) {
    for (unsigned i = 0; i < members_.size(); ++i) (*sender)[i].let_go_if_idle();
    if (sender->is_used()) return false;
    std::erase(senders_, sender.get());
    return true;
  });
}

// ---- The loop -----------------------------------------------------------------------------------

void GroupDriver::wait(Lock& lock) {
  const auto next = std::min(next_tick_, copies_.paused_until().value_or(next_tick_));
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  const auto timeout = std::clamp(left, std::chrono::milliseconds{0}, kTick);
  lock.unlock();
  polled_.clear();
  places_.clear();
  bool more = false;
  for_own([&](TaskSender& sender) {
    places_.push_back(polled_.size());
    sender.watch(polled_);
    more = more || sender.has_more();
  });
  ::poll(polled_.data(), polled_.size(), more ? 0 : static_cast<int>(timeout.count()));
  auto place = places_.begin();
  for_own([&](TaskSender& sender) { sender.progress(std::span{polled_}.subspan(*place++)); });
  lock.lock();
}

/// Their own threads are asked, and nobody waits for these.
void GroupDriver::look_at_sessions(Lock& lock) {
  for (Member& member : members_) {
    auto open = member.session.share();
    if (open == nullptr) continue;
    lock.unlock();
    const auto look = MemberSession::look_at(*open);
    lock.lock();
    if (member.session.share() == open) member.session.note(look);
    MemberLink& link = *open->link;
    link.give_back(std::move(open));
  }
}

void GroupDriver::settle() {
  do {
    take_outcome();
    if (superseded_) return end_for_good();
    const News news = std::exchange(news_, News::none);
    if (news == News::over) begin_anew();
    if (news == News::doubted) begin_without_doubt();
    if (news == News::attached) go_live();
    try_to_dissolve();
    calls_.submit_due(live_group());
  } while (news_ != News::none);
}

void GroupDriver::go_live() {
  bool lost = true;  // none of the disks that go on has what was not flushed
  for (unsigned i = 0; i < members_.size(); ++i)
    lost = lost && (!has(group_->copies(), i) || members_[i].lost_power);
  lossy_ = was_live_ && (std::exchange(forced_, false) || lost);
  follow_size();
  region_shift_ = shape_.region_shift;  // also of a disk that is too large for it by now
  learn_zeroing();
  tell_abilities();
  calls_.submit_all(*group_);
  changed_.notify_all();
}

void GroupDriver::tick() {
  const auto now = Clock::now();
  next_tick_ = now + kTick;
  check_links(now);
  learn_zeroing();
  calls_.let_go(now);
  if (group_ != nullptr && !superseded_) {
    const auto patience = std::min<Clock::duration>(kPatience, config_.connect_timeout / 2);
    if (!group_->live() && now - not_live_since_ > patience) group_->hurry();
    if (group_->live()) group_->work();
    if (group_->live() && (now >= next_cool_ || stop_by_)) {
      next_cool_ = now + kCoolPeriod;
      group_->cool();
    }
    if (group_->live()) check_growth(now);
    if (group_->live()) look_at_rooms(now);
    choose_nearest();
  }
  const auto limit = config_.no_path_timeout;
  if (live_group() == nullptr && limit != limit.zero() && now - not_live_since_ > limit)
    calls_.cancel_all(config_.no_path_error, nullptr);
  settle();
  report();
}

bool GroupDriver::may_stop(Clock::time_point now) const {
  return now >= *stop_by_ || live_group() == nullptr || (group_->cold() && !leaving_);
}

/// Lanes give the sessions back in turns of theirs.
void GroupDriver::part(Lock& lock) {
  std::vector<std::shared_ptr<OpenMember>> last;
  for (unsigned i = 0; i < members_.size(); ++i) last.push_back(end_session(i));
  group_.reset();
  calls_.cancel_all(EIO, nullptr);
  take_outcome();
  end_dissolve({EINTR,
                "the program ends, and the server may have become a disk of its own: see "
                "`rnbd-ctl SERVER member list` there"});
  inherit();
  for_own([this](TaskSender& sender) { prepare(sender); });
  bury();
  lock.unlock();
  for (unsigned i = 0; i < members_.size(); ++i) members_[i].link->leave(std::move(last[i]));
}

MirrorStatus GroupDriver::report() {
  MirrorStatus status;
  status.live = live_group() != nullptr;
  status.trouble = dead_;
  status.size = shape_.size;
  status.block = geometry_.block;
  status.growth = why_not_grown_;
  if (leaving_) status.dissolves_into = links_.server(leaving_->member);
  status.region_bytes = std::uint64_t{1} << shape_.region_shift;
  if (group_ != nullptr) {
    status.term = group_->term();
    status.unequal = group_->unequal();
    status.lacks_history = group_->lacks_history();
  }
  for (unsigned i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    const auto progress = group_ != nullptr ? group_->progress(i) : Group::Progress{};
    const std::string server = links_.server(i);
    report_.progress(i, server, progress, shape_.region_shift);
    member.pace.add(Clock::now(), progress);
    status.members.push_back(
        {.server = server,
         .progress = progress,
         .record = group_ != nullptr ? group_->record(i) : Membership::Record{},
         .to_copy = report_.to_copy(i),
         .pace = member.pace.regions_per_second(),
         .discarded = member.discarded,
         .hangs = member.hangs,
         .room = group_ != nullptr ? group_->room(i) : 0});
  }
  copies_.set_stalled(
      std::ranges::any_of(members_, [](const Member& member) { return member.pace.stalls(); }));
  report_verify();
  status.regions = shape_.regions;
  status.verify = verify_;
  status.differences = report_.differences();
  status.losses = report_.losses();
  status.returns = report_.returns();
  return status;
}

}  // namespace rnbd::mirror
