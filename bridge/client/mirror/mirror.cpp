// SPDX-License-Identifier: BSD-3-Clause
// The life of a mirror: its thread, its members, and when its group begins and ends.
#include "bridge/client/mirror/mirror.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <span>
#include <system_error>
#include <utility>

#include "bridge/client/interruptible_wait.hpp"

namespace rnbd::mirror {
namespace {

constexpr std::chrono::milliseconds kTick{100};
/// For members that do not answer, until the group goes on without them.
constexpr std::chrono::seconds kPatience{3};
/// A member counts as lost when it had no path for so long.
constexpr std::chrono::seconds kWithoutPath{1};
constexpr std::chrono::seconds kCoolPeriod{5};
constexpr std::chrono::seconds kPartWithin{2};

wire::Uuid random_uuid() {
  std::random_device random;
  wire::Uuid uuid;
  std::ranges::generate(uuid, [&] { return static_cast<std::uint8_t>(random()); });
  return uuid;
}

ClientConfig config_of_member(const ClientConfig& whole, std::size_t member) {
  ClientConfig config = whole;
  config.paths = whole.mirror->members[member];
  config.mirror.reset();
  config.lanes = 1;
  config.access = wire::AccessMode::read_write;
  config.is_member = true;
  config.control.clear();
  return config;
}

/// The abilities that all members have.
DeviceGeometry geometry_of_mirror(DeviceGeometry geometry) {
  geometry.device_id = 0;
  geometry.max_discard = 0;  // discarded blocks need not be equal on all
  geometry.extents = geometry.cache = geometry.fast_zero = geometry.in_use = false;
  geometry.witness = {};
  geometry.export_uuid = {};
  return geometry;
}

}  // namespace

Mirror::Mirror(const ClientConfig& config, rtrs::Log log)
    : config_{config},
      log_{std::move(log)},
      wake_{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)},
      members_(config.mirror->members.size()) {
  if (wake_ < 0) throw std::system_error{errno, std::generic_category(), "eventfd"};
  for (unsigned i = 0; i < members_.size(); ++i) {
    const auto on_open = [this, i](std::unique_ptr<OpenMember> open) {
      const auto shared = std::make_shared<std::unique_ptr<OpenMember>>(std::move(open));
      post([this, i, shared] { opened(i, std::move(*shared)); });
    };
    members_[i].link = std::make_unique<MemberLink>(config_of_member(config, i), log_, on_open);
  }
}

Mirror::~Mirror() {
  leave();
  ::close(wake_);
}

// ---- For its users ------------------------------------------------------------------------------

tl::expected<void, Failure> Mirror::attach(const Interrupt& interrupt) {
  std::unique_lock lock{mutex_};
  if (!std::exchange(running_, true)) {
    not_live_since_ = Clock::now();
    thread_ = std::thread{[this] { loop(); }};
    for (Member& member : members_) member.link->start();
  }
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
      Failure{ETIMEDOUT, "too few members of the mirror can be used: " + troubles()});
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
  post([this] {
    end_all(EIO);
    stop_by_ = Clock::now() + kPartWithin;
  });
  thread_.join();
}

// ---- The loop -----------------------------------------------------------------------------------

void Mirror::post(std::function<void()> function) {
  const std::lock_guard lock{mutex_};
  posted_.push_back(std::move(function));
  wake_up();
}

/// Once for all that comes together.
void Mirror::wake_up() {
  if (!std::exchange(woken_, true)) eventfd_write(wake_, 1);
}

/// Jobs of lanes first: others are given up only behind them.
void Mirror::run_posted() {
  eventfd_t ignored;
  eventfd_read(wake_, &ignored);
  std::vector<std::function<void()>> posted;
  {
    const std::lock_guard lock{mutex_};
    posted.swap(posted_);
    arriving_.swap(arrived_);
    woken_ = false;
  }
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
    if (Clock::now() >= next_tick_) tick();
    publish();
  }
  part();
}

void Mirror::wait() {
  polled_.assign(1, {.fd = wake_, .events = POLLIN, .revents = 0});
  bool more = false;
  for (Member& member : members_) {
    member.first = polled_.size();
    if (member.open != nullptr) member.open->loop->watch(polled_);
    member.count = polled_.size() - member.first;
    more = more || member.more;
  }
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_tick_ - Clock::now());
  const auto timeout = std::clamp(left, std::chrono::milliseconds{0}, kTick);
  ::poll(polled_.data(), polled_.size(), more ? 0 : static_cast<int>(timeout.count()));
}

void Mirror::serve() {
  for (Member& member : members_) {
    if (member.open == nullptr) continue;
    const std::span polled{polled_.data() + member.first, member.count};
    const bool ready = std::ranges::any_of(polled, [](const pollfd& p) { return p.revents != 0; });
    if (ready || member.more) member.more = member.open->loop->progress(polled);
  }
}

void Mirror::flush_lanes() {
  for (Member& member : members_)
    if (std::exchange(member.started, false) && member.open != nullptr) member.open->loop->flush();
}

/// False: nothing has ended. An answer may end the session of others that have ended as well, so
/// all are taken first.
bool Mirror::collect() {
  Errands ended;
  for (Member& member : members_) {
    if (member.open == nullptr) continue;
    for (auto* job = member.open->loop->collect(); job != nullptr;) {
      auto& errand = *static_cast<Errand*>(job->context);
      job = job->next;
      ended.push_back(take(errand));
    }
  }
  const bool any = !ended.empty();
  for (auto& errand : ended) finished(std::move(errand));
  return any;
}

/// Handles all events, and those that follow from them, until none is left.
void Mirror::settle() {
  do {
    if (superseded_) return end_for_good();
    if (std::exchange(over_, false)) begin_anew();
    if (std::exchange(attached_, false)) {
      lossy_ = last_term_ != 0 && std::ranges::all_of(members_, [](const Member& member) {
                 return member.open == nullptr || member.lost_power;
               });
      for (auto& [id, call] : calls_) submit(id, *call);
      const std::lock_guard lock{mutex_};
      live_ = true;
      changed_.notify_all();
    }
    flush_lanes();
  } while (collect() || over_ || attached_);
}

/// All answers of this turn, with one wake-up for each lane.
void Mirror::publish() {
  for (MirrorLane* lane : answered_) lane->publish();
  answered_.clear();
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
  for (Member& member : members_) {
    give_up_errands(member);
    member.link->leave(std::move(member.open));
  }
  run_posted();  // closes devices opened in the last moment, with their memory
  publish();
  group_.reset();
}

// ---- Members ------------------------------------------------------------------------------------

void Mirror::opened(unsigned number, std::unique_ptr<OpenMember> open) {
  Member& member = members_[number];
  if (stop_by_ || superseded_) return;
  if (group_ == nullptr) begin_group(*open);
  if (const std::string wrong = complaint(*open); !wrong.empty()) {
    member.link->set_trouble(wrong);
    return member.link->renew(std::move(open));
  }
  member.open = std::move(open);
  member.without_path.reset();
  group_->link_up(number);
}

void Mirror::begin_group(const OpenMember& open) {
  const DeviceGeometry& geometry = open.geometry();
  shape_ = {.members = static_cast<unsigned>(members_.size()),
            .regions = 0,
            .region_shift = wire::region_shift_of(geometry.size),
            .size = geometry.size,
            .group = config_.mirror->group,
            .claimant = random_uuid()};
  const wire::MirrorShape whole{0, shape_.members, shape_.region_shift, shape_.size};
  shape_.regions = whole.regions();
  const GroupOptions options{
      .members = shape_.members,
      .regions = shape_.regions,
      .region_sectors = (std::uint64_t{1} << shape_.region_shift) / wire::kSectorSize,
      .sectors = geometry.padded_size / wire::kSectorSize,
      .degraded = config_.mirror->degraded};
  GroupHost& host = *this;
  group_ = std::make_unique<Group>(options, host);
  const std::lock_guard lock{mutex_};
  if (geometry_.size == 0) geometry_ = geometry_of_mirror(geometry);
}

/// "", or why its device cannot stand beside the others'.
std::string Mirror::complaint(const OpenMember& open) const {
  const DeviceGeometry& geometry = open.geometry();
  if (geometry.size != geometry_.size)
    return "its disk has " + std::to_string(geometry.size) + " bytes, that of another member " +
           std::to_string(geometry_.size) + "; give all the same size";
  if (geometry.block > geometry_.block)
    return "its blocks have " + std::to_string(geometry.block) +
           " bytes, those of another member " + std::to_string(geometry_.block) +
           "; name a server with the larger ones first";
  return "";
}

/// Ends its session; the next one is made.
void Mirror::drop(unsigned number) {
  Member& member = members_[number];
  if (member.open == nullptr) return;
  give_up_errands(member);
  member.open->loop.reset();
  member.link->renew(std::move(member.open));
}

void Mirror::lost(unsigned number) {
  drop(number);
  if (group_ != nullptr) group_->link_down(number);
}

void Mirror::check_links(Clock::time_point now) {
  for (unsigned i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (member.open == nullptr) continue;
    const Session& session = *member.open->session;
    if (session.alive() && session.has_path()) {
      member.without_path.reset();
      continue;
    }
    if (!member.without_path) member.without_path = now;
    if (session.alive() && now - *member.without_path < kWithoutPath) continue;
    member.link->set_trouble("no path to it works any more");
    lost(i);
  }
}

/// By the heartbeats. Half as long again does not count, so that it stays with one of equals.
void Mirror::choose_nearest() {
  if (!config_.mirror->near) return;
  unsigned nearest = kMaxMembers;
  rtrs::Duration least{};
  for (unsigned i = 0; i < members_.size(); ++i) {
    if (members_[i].open == nullptr || !has(group_->in_step(), i)) continue;
    rtrs::Duration latency = rtrs::Duration::max();
    for (const auto& path : members_[i].open->session->client().paths())
      if (path.in_use && path.latency > latency.zero()) latency = std::min(latency, path.latency);
    if (nearest != kMaxMembers && latency >= least / 3 * 2) continue;
    nearest = i;
    least = latency;
  }
  group_->prefer(nearest);
}

/// The group is over. Calls without an answer go to the next one, unless an answer ended the group.
void Mirror::begin_anew() {
  last_term_ = std::max(last_term_, group_->term());
  for (unsigned i = 0; i < members_.size(); ++i) drop(i);
  group_.reset();
  own_memory_.clear();
  not_live_since_ = Clock::now();
  {
    const std::lock_guard lock{mutex_};
    live_ = false;
  }
  for (auto& [id, call] : std::map{calls_}) {
    if (call->failure == 0) continue;
    end(*call, call->failure);
    calls_.erase(id);
  }
  say(rtrs::LogLevel::error, "too few members are left; requests wait until there are enough");
}

/// Another client has written: the users' knowledge of the disk is no longer true.
void Mirror::end_for_good() {
  for (Member& member : members_) {
    give_up_errands(member);
    if (member.open != nullptr) member.open->loop.reset();
    member.link->leave(std::move(member.open));
  }
  group_.reset();
  end_all(EIO);
  const std::lock_guard lock{mutex_};
  live_ = false;
  if (!dead_.empty()) return;
  dead_ = "another client has taken the mirror over and may have written; connect anew";
  changed_.notify_all();
  say(rtrs::LogLevel::error, dead_);
}

}  // namespace rnbd::mirror
