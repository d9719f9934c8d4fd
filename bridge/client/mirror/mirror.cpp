// SPDX-License-Identifier: BSD-3-Clause
// The life of a mirror: its thread, its members, and when its group begins and ends.
#include "bridge/client/mirror/mirror.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/client/interruptible_wait.hpp"

namespace rnbd::mirror {
namespace {

constexpr std::chrono::milliseconds kTick{100};
/// The wait for silent members, until the group goes on without them.
constexpr std::chrono::seconds kPatience{3};
constexpr std::chrono::seconds kCoolPeriod{5};
constexpr std::chrono::seconds kPartWithin{2};

}  // namespace

Mirror::Mirror(const ClientConfig& config, rtrs::Log log)
    : config_{config},
      links_{config, log,
             [this](unsigned member, std::unique_ptr<OpenMember> open) {
               const auto shared = std::make_shared<std::unique_ptr<OpenMember>>(std::move(open));
               door_.post([this, member, shared] { opened(member, std::move(*shared)); });
             }},
      members_(config.mirror->members.size()),
      report_{config.device, std::move(log), members_.size()} {
  for (unsigned i = 0; i < members_.size(); ++i) members_[i].link = &links_[i];
}

Mirror::~Mirror() { leave(); }

// ---- For its users ------------------------------------------------------------------------------

void Mirror::begin() {
  const std::lock_guard lock{mutex_};
  if (std::exchange(running_, true)) return;
  not_live_since_ = Clock::now();
  thread_ = std::thread{[this] { loop(); }};
  for (Member& member : members_) member.link->start();
}

tl::expected<void, Failure> Mirror::attach(const Interrupt& interrupt) {
  begin();
  std::unique_lock lock{mutex_};
  const auto deadline = Clock::now() + config_.connect_timeout;
  const auto settled = [&] { return live_ || !dead_.empty() || Clock::now() >= deadline; };
  while (!settled()) {
    const auto next = std::min(deadline, Clock::now() + 2 * kTick);
    changed_.wait_until(lock, next, settled);
    if (!settled() && interrupt())
      return tl::unexpected(Failure{EINTR, "interrupted while the mirror was being attached"});
  }
  if (!dead_.empty()) return tl::unexpected(Failure{ESTALE, dead_});
  if (live_) return {};
  lock.unlock();
  return tl::unexpected(
      Failure{ETIMEDOUT, "too few members of the mirror can be used: " + links_.troubles()});
}

DeviceGeometry Mirror::geometry() const {
  const std::lock_guard lock{mutex_};
  return geometry_;
}

bool Mirror::dead() const {
  const std::lock_guard lock{mutex_};
  return !dead_.empty();
}

void Mirror::leave() {
  {
    const std::lock_guard lock{mutex_};
    if (!std::exchange(running_, false)) return;
  }
  door_.post([this] {
    end_all(EIO);
    stop_by_ = Clock::now() + kPartWithin;
  });
  thread_.join();
}

// ---- The loop -----------------------------------------------------------------------------------

/// Jobs of lanes come first, because other calls are cancelled after them.
void Mirror::run_posted() {
  std::vector<std::function<void()>> posted;
  door_.take(arriving_, posted);
  for (const CallPtr& call : arriving_) accept(call);
  arriving_.clear();
  for (const auto& function : posted) function();
}

void Mirror::loop() {
  next_tick_ = Clock::now();
  while (!stop_by_ || !may_stop(Clock::now())) {
    wait();
    serve();
    if (polled_.front().revents != 0) run_posted();
    settle();
    if (resume_at_ && Clock::now() >= *resume_at_) resume();
    if (Clock::now() >= next_tick_) tick();
    answers_.publish();
  }
  part();
}

void Mirror::wait() {
  polled_.assign(1, {.fd = door_.descriptor(), .events = POLLIN, .revents = 0});
  bool more = false;
  for (Member& member : members_) {
    member.session.watch(polled_);
    more = more || member.session.has_more();
  }
  const auto next = std::min(next_tick_, resume_at_.value_or(next_tick_));
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now());
  const auto timeout = std::clamp(left, std::chrono::milliseconds{0}, kTick);
  ::poll(polled_.data(), polled_.size(), more ? 0 : static_cast<int>(timeout.count()));
  turn_ = Clock::now();
}

void Mirror::serve() {
  for (Member& member : members_) member.session.progress(polled_);
}

// ---- Copying, in the time that requests leave ---------------------------------------------------

/// After a copy. While there are requests, most of the time belongs to them, so that most of them
/// meet no copy.
void Mirror::rest(const Own& copied) {
  constexpr int kTimesAsLong = 3;
  constexpr std::chrono::milliseconds kRecent{100};
  const auto now = Clock::now();
  const auto took = now - copied.began;
  const bool busy = !calls_.empty() || now - last_request_ < kRecent;
  Clock::duration pause{};
  if (busy) pause = kTimesAsLong * took;
  if (const std::uint64_t rate = config_.mirror->resync_rate; rate != 0) {
    const std::chrono::duration<double> due{static_cast<double>(copied.length) /
                                            static_cast<double>(rate)};
    pause = std::max(pause, std::chrono::duration_cast<Clock::duration>(due) - took);
  }
  if (pause > pause.zero()) resume_at_ = now + pause;
}

void Mirror::resume() {
  resume_at_.reset();
  if (group_ == nullptr || !group_->live()) return;
  group_->work();
  settle();
}

/// False: nothing has ended. An answer may end the session of others that have ended as well, so
/// all are taken first.
bool Mirror::collect() {
  std::vector<TaskPtr> ended;
  for (Member& member : members_) member.session.collect(ended);
  const bool any = !ended.empty();
  for (auto& task : ended) finished(std::move(task));
  return any;
}

/// Handles all events, and those that follow from them, until none is left.
void Mirror::settle() {
  do {
    if (superseded_) return end_for_good();
    if (std::exchange(over_, false)) begin_anew();
    if (std::exchange(attached_, false)) {
      const bool lost = std::ranges::all_of(members_, [](const Member& member) {
        return !member.session.is_open() || member.lost_power;
      });
      lossy_ = last_term_ != 0 && (std::exchange(forced_, false) || lost);
      for (auto& [id, call] : calls_) submit(id, *call);
      report();  // no reader sees the mirror attached with an old report
      const std::lock_guard lock{mutex_};
      live_ = true;
      changed_.notify_all();
    }
    for (Member& member : members_) member.session.flush();
  } while (collect() || over_ || attached_);
}

void Mirror::tick() {
  const auto now = Clock::now();
  next_tick_ = now + kTick;
  check_links(now);
  for (auto& [id, call] : std::map{calls_}) free_of(id, *call);
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
  const bool live = group_ != nullptr && group_->live();
  const auto limit = config_.no_path_timeout;
  if (!live && limit != limit.zero() && now - not_live_since_ > limit)
    end_all(config_.no_path_error);
  settle();
  report();
}

bool Mirror::may_stop(Clock::time_point now) const {
  return now >= *stop_by_ || group_ == nullptr || !group_->live() || group_->cold();
}

void Mirror::part() {
  for (Member& member : members_) member.link->leave(member.session.end());
  run_posted();  // closes devices opened in the last moment, with their memory
  answers_.publish();
  group_.reset();
}

}  // namespace rnbd::mirror
