// SPDX-License-Identifier: BSD-3-Clause
// The loop of a mirror's thread.
#include "bridge/client/mirror/group_driver.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/client/mirror/mirror_config.hpp"

namespace rnbd::mirror {
namespace {

constexpr std::chrono::milliseconds kTick{100};
/// The wait for silent members, until the group goes on without them.
constexpr std::chrono::seconds kPatience{3};
constexpr std::chrono::seconds kCoolPeriod{5};
constexpr std::chrono::seconds kPartWithin{2};

}  // namespace

GroupDriver::GroupDriver(const ClientConfig& config, const Surroundings& surroundings,
                         rtrs::Log log)
    : config_{config},
      mailbox_{surroundings.mailbox},
      answers_{surroundings.answers},
      links_{surroundings.links},
      state_{surroundings.state},
      members_(config.servers.size()),
      report_{config.device, std::move(log), members_.size()},
      record_terms_{config.servers.size()},
      calls_{answers_,
             [this](auto operation, bool by_force) { return withdraw(operation, by_force); }},
      copies_{settings_of(config).resync_rate} {
  for (unsigned i = 0; i < members_.size(); ++i) {
    members_[i].link = &links_[i];
    members_[i].overwrite = settings_of(config).create_copy;
  }
}

void GroupDriver::loop() {
  next_tick_ = not_live_since_ = Clock::now();
  while (!stop_by_ || !may_stop(Clock::now())) {
    wait();
    for (Member& member : members_) member.session.progress(polled_);
    if (polled_.front().revents != 0) run_posted();
    settle();
    if (copies_.resume(Clock::now()) && live_group() != nullptr) {
      group_->work();
      settle();
    }
    if (Clock::now() >= next_tick_) tick();
    answers_.publish();
  }
  part();
}

void GroupDriver::stop() {
  calls_.cancel_all(EIO, live_group());
  stop_by_ = Clock::now() + kPartWithin;
}

void GroupDriver::accept(const CallPtr& call) {
  if (superseded_ || stop_by_) return answers_.end(*call, EIO);
  copies_.requested(Clock::now());
  calls_.add(call, live_group());
}

void GroupDriver::run_posted() {
  mailbox_.take(letters_);
  for (const auto& [call, function] : letters_) {
    if (call != nullptr)
      accept(call);
    else
      function();
  }
  letters_.clear();
}

void GroupDriver::wait() {
  polled_.assign(1, {.fd = mailbox_.descriptor(), .events = POLLIN, .revents = 0});
  bool more = false;
  for (Member& member : members_) {
    member.session.watch(polled_);
    more = more || member.session.has_more();
  }
  const auto next = std::min(next_tick_, copies_.paused_until().value_or(next_tick_));
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  const auto timeout = std::clamp(left, std::chrono::milliseconds{0}, kTick);
  ::poll(polled_.data(), polled_.size(), more ? 0 : static_cast<int>(timeout.count()));
  turn_ = Clock::now();
}

/// False: nothing has ended. An answer may end the session of others that have ended as well, so
/// all are taken first.
bool GroupDriver::collect() {
  std::vector<TaskPtr> ended;
  for (Member& member : members_) member.session.collect(ended);
  const bool any = !ended.empty();
  for (auto& task : ended) finished(std::move(task));
  return any;
}

/// Handles all events, and those that follow from them, until none is left.
void GroupDriver::settle() {
  do {
    if (superseded_) return end_for_good();
    const News news = std::exchange(news_, News::none);
    if (news == News::over) begin_anew();
    if (news == News::doubted) begin_without_doubt();
    if (news == News::attached) go_live();
    calls_.submit_due(live_group());
    for (Member& member : members_) member.session.flush();
  } while (collect() || news_ != News::none);
}

void GroupDriver::go_live() {
  const bool lost = std::ranges::all_of(members_, [](const Member& member) {
    return !member.session.is_open() || member.lost_power;
  });
  lossy_ = was_live_ && (std::exchange(forced_, false) || lost);
  learn_zeroing();
  tell_abilities();
  calls_.submit_all(*group_);
  report();  // no reader sees the mirror attached with an old report
  state_.set_live(true);
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
    choose_nearest();
  }
  const auto limit = config_.no_path_timeout;
  if (live_group() == nullptr && limit != limit.zero() && now - not_live_since_ > limit)
    calls_.cancel_all(config_.no_path_error, nullptr);
  settle();
  report();
}

bool GroupDriver::may_stop(Clock::time_point now) const {
  return now >= *stop_by_ || live_group() == nullptr || group_->cold();
}

void GroupDriver::part() {
  for (Member& member : members_) member.link->leave(member.session.end());
  run_posted();  // closes devices opened in the last moment, with their memory
  answers_.publish();
  group_.reset();
}

void GroupDriver::report() {
  MirrorStatus status;
  status.live = live_group() != nullptr;
  status.size = shape_.size;
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
         .hangs = member.hangs});
  }
  status.losses = report_.losses();
  status.returns = report_.returns();
  state_.publish(std::move(status));
}

}  // namespace rnbd::mirror
