// SPDX-License-Identifier: BSD-3-Clause
// The sessions of a mirror with its members: their beginning, their loss, and the end of all.
#include <algorithm>
#include <cerrno>
#include <random>
#include <utility>

#include "bridge/client/mirror/group_driver.hpp"
#include "bridge/client/mirror/mirror_config.hpp"
#include "bridge/client/mirror/mirror_status.hpp"

namespace rnbd::mirror {
namespace {

wire::Uuid random_uuid() {
  std::random_device random;
  wire::Uuid uuid;
  std::ranges::generate(uuid, [&] { return static_cast<std::uint8_t>(random()); });
  return uuid;
}

/// The abilities that all members have.
DeviceGeometry geometry_of_mirror(DeviceGeometry geometry) {
  geometry.device_id = 0;
  geometry.max_discard = 0;  // it and others are known when the group is attached
  geometry.extents = geometry.cache = geometry.fast_zero = geometry.in_use = false;
  geometry.witness = {};
  geometry.export_uuid = {};
  return geometry;
}

bool is_same_disk(const DeviceGeometry& one, const DeviceGeometry& other) {
  return one.export_uuid == other.export_uuid && one.export_uuid != wire::Uuid{};
}

/// "", or why its device cannot stand beside the others'. The answer to a claim says whether it has
/// the size.
std::string complaint_about(const DeviceGeometry& geometry, const DeviceGeometry& others) {
  if (geometry.block > others.block)
    return "its blocks have " + std::to_string(geometry.block) +
           " bytes, those of another member " + std::to_string(others.block) +
           "; name a server with the larger ones first";
  return "";
}

}  // namespace

Group* GroupDriver::live_group() const {
  return group_ != nullptr && group_->live() ? group_.get() : nullptr;
}

/// A server tells the size by its record, if it has one, or that of its whole disk. A group begins
/// with the smallest one, and takes the size that the records say when it attaches.
void GroupDriver::opened(unsigned number, std::shared_ptr<OpenMember> open) {
  Member& member = members_[number];
  const bool wanted = !stop_by_ && !superseded_ && !member.discarded;
  if (!wanted) return member.link->let_go(std::move(open));
  if (open->config != member.link->config()) return member.link->renew(std::move(open));
  if (!member.is_vote && !fits_others(number, open)) return member.link->renew(std::move(open));
  member.failure = 0;
  member.bad_disk = false;
  member.has_disk = false;
  member.shown = {};
  member.session.begin(std::move(open));
  send_vote_away();
  if (!member.session.is_open()) return;
  if (group_ != nullptr) return group_->link_up(number, member.overwrite);
  if (member.is_vote) return;  // a disk tells the size of the group
  begin_group();
  for (unsigned i = 0; i < members_.size(); ++i)
    if (members_[i].session.is_open()) group_->link_up(i, members_[i].overwrite);
}

/// Its server has a disk of the mirror, too, by another address. Which of the two is there first is
/// chance.
void GroupDriver::send_vote_away() {
  const auto id_of = [](const Member& member) {
    return member.session.is_open() ? member.session.open().session->client().server_id()
                                    : rtrs::ServerId{};
  };
  const auto vote = static_cast<unsigned>(config_.servers.size());
  if (vote == members_.size() || id_of(members_[vote]) == 0) return;
  for (unsigned i = 0; i < vote; ++i) {
    if (id_of(members_[i]) != id_of(members_[vote])) continue;
    members_[vote].link->set_trouble("it is the same server as " + links_.server(i) +
                                     ", whose loss the vote would not outlive; name another one");
    return lost(vote);
  }
}

/// False: its disk cannot stand beside the others'.
bool GroupDriver::fits_others(unsigned number, const std::shared_ptr<OpenMember>& open) {
  const Member& member = members_[number];
  const DeviceGeometry& geometry = open->geometry();
  const bool is_new = !was_live_ && live_group() == nullptr;
  if (geometry_.size == 0 || (geometry.size < geometry_.size && is_new)) begin_with(geometry);
  if (const std::string wrong = complaint_about(geometry, geometry_); !wrong.empty()) {
    member.link->set_trouble(wrong);
    return false;
  }
  for (const Member& other : members_)
    if (other.session.is_open() && is_same_disk(other.session.open().geometry(), geometry))
      report_.same_disk(member.link->server(), other.link->server());
  return true;
}

void GroupDriver::begin_with(const DeviceGeometry& geometry) {
  if (group_ != nullptr) begin_without_doubt();
  geometry_ = geometry_of_mirror(geometry);
}

/// Users of before keep the size that they know: what lies behind the end of a disk that an
/// operator has forced is not there.
void GroupDriver::follow_size() {
  geometry_.size = group_->disk_size();
  geometry_.padded_size = sectors_of(geometry_.size) * wire::kSectorSize;
}

void GroupDriver::grown() {
  const std::string before = std::to_string(geometry_.size);
  follow_size();
  learn_zeroing();
  why_not_grown_.clear();
  report_.say(rtrs::LogLevel::info,
              "it has grown from " + before + " to " + std::to_string(geometry_.size) + " bytes");
}

/// Each attempt closes the gate, and ends with a view for which requests wait, too.
void GroupDriver::not_grown(unsigned number, int error) {
  constexpr std::chrono::seconds kPause{30};
  next_look_at_rooms_ = Clock::now() + kPause;
  const std::string server = number < members_.size() ? links_.server(number) : std::string{};
  std::string why = words_of_growth(server, error);
  if (why == why_not_grown_) return;
  why_not_grown_ = std::move(why);
  report_.say(rtrs::LogLevel::warning, "it keeps its size of " + std::to_string(geometry_.size) +
                                           " bytes: " + why_not_grown_);
}

/// Requests wait while it waits for those that are under way. One of these may hang.
void GroupDriver::check_growth(Clock::time_point now) {
  constexpr std::chrono::milliseconds kMostWait{800};
  if (!group_->prepares_growth()) no_growth_ = now;
  if (now - no_growth_ >= kMostWait) group_->put_off_growth();
}

/// A disk that has grown has smaller regions than a new one of its size.
void GroupDriver::follow_regions(unsigned shift) {
  if (was_live_ || live_group() != nullptr || region_shift_) return;
  region_shift_ = shift;
  news_ = News::doubted;
}

/// Nobody waits for members that an operator has discarded.
void GroupDriver::look_at_rooms(Clock::time_point now) {
  constexpr std::chrono::seconds kPeriod{2};
  if (now < next_look_at_rooms_) return;
  next_look_at_rooms_ = now + kPeriod;
  MemberSet discarded = 0;
  for (unsigned i = 0; i < members_.size(); ++i)
    if (members_[i].discarded) discarded = with(discarded, i);
  group_->look_at_rooms(discarded);
}

void GroupDriver::begin_group() {
  shape_ = {.members = static_cast<unsigned>(config_.servers.size()),
            .regions = 0,
            .region_shift = region_shift_.value_or(wire::region_shift_of(geometry_.size)),
            .size = geometry_.size,
            .group = settings_of(config_).group,
            .claimant = random_uuid()};
  const wire::MirrorShape whole{0, shape_.members, shape_.region_shift, shape_.size};
  shape_.regions = whole.regions();
  const GroupOptions options{.members = shape_.members,
                             .vote = settings_of(config_).vote.has_value(),
                             .region_sectors = whole.region_bytes() / wire::kSectorSize,
                             .size = geometry_.size,
                             .granule = geometry_.block,
                             .most_regions = wire::kMaxGrownRegions - 1,
                             .degraded = settings_of(config_).degraded};
  GroupHost& host = *this;
  group_ = std::make_unique<Group>(options, host);
}

/// By the members that are there, in step or not.
void GroupDriver::learn_zeroing() {
  constexpr std::uint64_t kMostRegions = 256;  // one page of a record has more
  Zeroing zeroing{.fast = true,
                  .size = geometry_.padded_size,
                  .piece = zeroing_piece(shape_.region_shift),
                  .question = kMostRegions << shape_.region_shift};
  for (const Member& member : members_) {
    if (!member.session.is_open() || member.is_vote) continue;
    const DeviceGeometry& geometry = member.session.open().geometry();
    zeroing.fast = zeroing.fast && geometry.fast_zero;
    zeroing.granule =
        std::max<std::uint64_t>({zeroing.granule, geometry.discard_granularity, geometry.block});
  }
  calls_.set_zeroing(zeroing);
}

/// To those who open the disk from now on: what all members in step can.
void GroupDriver::tell_abilities() {
  bool fast_zero = true, extents = true;
  for (unsigned i = 0; i < members_.size(); ++i) {
    if (!has(group_->copies(), i) || !members_[i].session.is_open()) continue;
    const DeviceGeometry& geometry = members_[i].session.open().geometry();
    fast_zero = fast_zero && geometry.fast_zero;
    extents = extents && geometry.extents;
  }
  geometry_.fast_zero = fast_zero;
  geometry_.max_discard = fast_zero ? geometry_.max_write_zeroes : 0;
  geometry_.extents = extents;
}

MemberSet GroupDriver::leased() {
  const auto now = Clock::now();
  MemberSet leased = 0;
  for (unsigned i = 0; i < members_.size(); ++i)
    if (now - members_[i].shown < kReadLease) leased = with(leased, i);
  return leased;
}

/// Ends its session; the next one is made.
void GroupDriver::drop(unsigned number) {
  Member& member = members_[number];
  if (!member.session.is_open()) return;
  copies_.forget(number);
  const bool sent_away = leaving_ && leaving_->begun && number != leaving_->member;
  if (group_ != nullptr && has(group_->in_step(), number) && !sent_away)
    report_.lost(number, member.link->server(), member.link->trouble(), member.failure);
  auto open = end_session(number);
  if (member.discarded) return member.link->let_go(std::move(open));
  if (member.is_vote)
    return member.link->renew(std::move(open),
                              member.vote_pause.after_loss(live_group() != nullptr));
  const bool waits = member.bad_disk && group_ != nullptr && group_->can_spare(bit(number));
  member.link->renew(std::move(open), waits ? wait_after_failure(number) : Clock::duration{});
}

/// Threads that use it part with it in their next turns.
std::shared_ptr<OpenMember> GroupDriver::end_session(unsigned number) {
  for (TaskSender* sender : senders_)
    if ((*sender)[number].is_used()) sender->call_up();
  return members_[number].session.end();
}

/// Of the commands of all threads, without an answer.
GroupDriver::Clock::time_point GroupDriver::oldest(unsigned number, Clock::time_point now) {
  for (TaskSender* sender : senders_) now = (*sender)[number].oldest(members_[number].session, now);
  return now;
}

/// The first failure may be an accident.
GroupDriver::Clock::duration GroupDriver::wait_after_failure(unsigned number) {
  Member& member = members_[number];
  const auto wait = member.disk_failures.add(Clock::now());
  if (wait != wait.zero())
    member.link->set_trouble(
        words_of_failing(member.link->server(), member.failure,
                         std::chrono::duration_cast<std::chrono::minutes>(wait)));
  return wait;
}

void GroupDriver::lost(unsigned number) {
  drop(number);
  if (group_ != nullptr) group_->link_down(number);
}

/// Requests wait while a vote records a view. Where the others can go on without it, that is soon.
/// Where they cannot, the group ends: a disk that is back cannot join before that view is in force.
/// While no view is recorded, nothing waits for the vote.
void GroupDriver::check_vote(unsigned number, Clock::time_point now) {
  constexpr std::chrono::seconds kSoon{2};
  constexpr std::chrono::seconds kLate{30};
  Member& vote = members_[number];
  if (!vote.is_vote || live_group() == nullptr || is_in_doubt()) return;
  const bool is_spared = group_->can_spare(bit(number));
  if (!is_spared && !group_->records_view()) return;
  const auto limit = is_spared && group_->records_view() ? kSoon : kLate;
  if (now - oldest(number, now) < limit) return;
  vote.failure = ETIMEDOUT;
  vote.hangs = false;
  vote.vote_pause.failed();
  vote.link->set_trouble("it has left a request without an answer for " +
                         std::to_string(limit.count()) +
                         " s, as where its state directory hangs; it is tried again, later each "
                         "time");
  lost(number);
}

/// Users wait for a member that hangs. If the others answer, and can go on without it, it is lost.
/// Nothing of it may land later, as its server takes no new claim before the old requests have
/// ended.
void GroupDriver::check_hanging(unsigned number, Clock::time_point now) {
  constexpr std::chrono::seconds kReported{5};
  constexpr std::chrono::seconds kLost{30};
  Member& member = members_[number];
  const auto waits = now - oldest(number, now);
  const bool is_used =
      live_group() == nullptr || group_->progress(number).standing >= Group::Standing::resync;
  const bool hangs = is_used && waits >= kReported;
  const std::string server = member.link->server();
  if (std::exchange(member.hangs, hangs) != hangs) {
    if (hangs)
      report_.say(rtrs::LogLevel::warning, server + ": " + words_of_hanging(server));
    else
      report_.say(rtrs::LogLevel::info,
                  server + ": it leaves no request without an answer any more");
  }
  if (!hangs || waits < kLost || group_ == nullptr || !group_->can_spare(bit(number))) return;
  bool others_answer = false;
  for (unsigned i = 0; i < members_.size(); ++i)
    if (members_[i].session.is_open() && now - oldest(i, now) < kReported)
      others_answer = others_answer || has(group_->copies(), i);
  if (!others_answer) return;
  member.failure = ETIMEDOUT;
  member.bad_disk = true;
  member.hangs = false;
  member.link->set_trouble(
      "it has left a request without an answer for half a minute, while others "
      "answered; it is taken back when its disk answers");
  lost(number);
}

void GroupDriver::check_links(Clock::time_point now) {
  for (unsigned i = 0; i < members_.size(); ++i) {
    check_vote(i, now);
    check_hanging(i, now);
    if (!members_[i].session.is_lost(oldest(i, now), now)) continue;
    if (members_[i].is_vote && is_in_doubt()) continue;
    members_[i].link->set_trouble(members_[i].session.look().lost_device
                                      ? "its disk was opened by another client, or replaced"
                                      : "no path to it works any more");
    members_[i].bad_disk = false;  // an earlier error is not the reason
    lost(i);
  }
}

/// A disk in step has no path, and may be lost soon. If the other one had recorded a view without
/// the vote by then, it would wait for that disk. So the disk is lost first.
bool GroupDriver::is_in_doubt() const {
  if (live_group() == nullptr) return false;
  for (unsigned i = 0; i < members_.size(); ++i) {
    const MemberSession& session = members_[i].session;
    if (has(group_->copies(), i) && session.is_open() && !session.look().has_path) return true;
  }
  return false;
}

/// By the heartbeats. Half as long again does not count, so that it stays with one of equals.
void GroupDriver::choose_nearest() {
  if (!settings_of(config_).near) return;
  unsigned nearest = kMaxMembers;
  rtrs::Duration least{};
  for (unsigned i = 0; i < members_.size(); ++i) {
    if (!members_[i].session.is_open() || !has(group_->copies(), i)) continue;
    const rtrs::Duration latency = members_[i].session.look().latency;
    if (nearest != kMaxMembers && latency >= least / 3 * 2) continue;
    nearest = i;
    least = latency;
  }
  group_->prefer(nearest);
}

/// Calls wait from now on, not from when the group was last made.
void GroupDriver::over() {
  news_ = News::over;
  not_live_since_ = Clock::now();
}

/// The group is over. Calls without an answer go to the next one, unless an answer ended the group.
void GroupDriver::begin_anew() {
  end_dissolve({EIO, "too few servers were left: see the log and `mirror status`, and repeat it"});
  was_live_ = true;
  for (unsigned i = 0; i < members_.size(); ++i) {
    drop(i);
    members_[i].link->hurry();  // it may be needed
  }
  group_.reset();
  copies_.clear();
  calls_.end_failed();
  report_.say(rtrs::LogLevel::error,
              "too few members are left; requests wait until there are enough");
}

/// Nothing was served yet. The next group begins with a low term, and does not follow the record
/// that the high one came from; or it has another size.
void GroupDriver::begin_without_doubt() {
  for (unsigned i = 0; i < members_.size(); ++i) drop(i);
  group_.reset();
  copies_.clear();
}

/// Another client has written: the users' knowledge of the disk is no longer true.
void GroupDriver::end_for_good() {
  for (unsigned i = 0; i < members_.size(); ++i) members_[i].link->let_go(end_session(i));
  group_.reset();
  news_ = News::none;  // of that group: nobody else would handle it
  calls_.cancel_all(EIO, nullptr);
  end_dissolve({ESTALE, "another client has taken the mirror over"});
  if (!dead_.empty()) return;
  const bool dissolved = !dissolved_into_.empty();
  dead_ =
      dissolved ? "an operator has dissolved the mirror; its disk is now " + dissolved_into_
      : forced_elsewhere_
          ? "an operator has had another client go on with other servers (mirror force); what was "
            "written here since then may not be there; connect anew"
          : "another client has taken the mirror over and may have written; connect anew";
  changed_.notify_all();
  report_.say(dissolved ? rtrs::LogLevel::warning : rtrs::LogLevel::error, dead_);
}

}  // namespace rnbd::mirror
