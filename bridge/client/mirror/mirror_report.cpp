// SPDX-License-Identifier: BSD-3-Clause
// A mirror's report on itself.
#include <algorithm>
#include <system_error>
#include <utility>

#include "bridge/client/mirror/mirror.hpp"
#include "rdma/log_about.hpp"

namespace rnbd::mirror {

void Mirror::say(rtrs::LogLevel level, const std::string& text) const {
  const rtrs::LogAbout about{{.event = "mirror", .device = config_.device}};
  if (log_) log_(level, "mirror " + config_.device + ": " + text);
}

std::string Mirror::server_of(unsigned member) const { return members_[member].link->server(); }

/// "a:1234 (why), b:1234 (why)"
std::string Mirror::troubles() const {
  std::string text;
  for (unsigned i = 0; i < members_.size(); ++i) {
    const std::string why = members_[i].link->trouble();
    if (i != 0) text += ", ";
    text += server_of(i) + " (" + (why.empty() ? "is there" : why) + ")";
  }
  return text;
}

void Mirror::report() {
  MirrorStatus status;
  status.live = group_ != nullptr && group_->live();
  status.size = shape_.size;
  status.region_bytes = std::uint64_t{1} << shape_.region_shift;
  if (group_ != nullptr) {
    status.term = group_->term();
    status.unequal = group_->unequal();
  }
  for (unsigned i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    const auto progress = group_ != nullptr ? group_->progress(i) : Group::Progress{};
    report(member, progress);
    status.members.push_back({.server = server_of(i),
                              .progress = progress,
                              .to_copy = member.to_copy,
                              .discarded = member.discarded});
  }
  status.losses = losses_;
  status.returns = returns_;
  const std::lock_guard lock{mutex_};
  published_ = std::move(status);
}

/// A line whenever a member is in step, and for each tenth of its resync.
void Mirror::report(Member& member, const Group::Progress& progress) {
  using Standing = Group::Standing;
  const std::string server = member.link->server();
  const Standing before = std::exchange(member.told, progress.standing);
  if (progress.standing == Standing::resync) {
    if (before != Standing::resync) member.to_copy = member.told_tenths = 0;
    member.to_copy = std::max(member.to_copy, progress.left);
    const std::uint64_t copied = member.to_copy - progress.left;
    const auto tenths =
        static_cast<unsigned>(member.to_copy == 0 ? 0 : copied * 10 / member.to_copy);
    if (tenths <= member.told_tenths && before == Standing::resync) return;
    member.told_tenths = tenths;
    const std::uint64_t left = std::uint64_t{progress.left} << shape_.region_shift >> 20;
    return say(rtrs::LogLevel::info,
               server + " is being brought up to date: " + std::to_string(tenths * 10) + " %, " +
                   std::to_string(left) + " MiB left");
  }
  if (progress.standing == before) return;
  if (progress.standing == Standing::in_step) {
    ++returns_;
    member.to_copy = 0;
    say(rtrs::LogLevel::info, server + " is in step");
  }
}

/// At once: it may be back before the next report.
void Mirror::report_loss(Member& member) {
  ++losses_;
  member.told = Group::Standing::away;
  std::string why = member.link->trouble();
  if (why.empty()) {
    why = "see its log";
    if (member.failure != 0) why += ", " + std::generic_category().message(member.failure);
  }
  say(rtrs::LogLevel::warning, member.link->server() + " is lost; the others go on: " + why);
}

MirrorStatus Mirror::status() const {
  MirrorStatus status;
  {
    const std::lock_guard lock{mutex_};
    status = published_;
    status.trouble = dead_;
  }
  status.uri = uri();
  status.members.resize(members_.size());
  for (unsigned i = 0; i < members_.size(); ++i) {
    MemberStatus& member = status.members[i];
    member.server = server_of(i);
    member.trouble = members_[i].link->trouble();
    member.session = members_[i].link->status();
  }
  if (!status.live && status.trouble.empty()) status.trouble = "too few members: " + troubles();
  return status;
}

}  // namespace rnbd::mirror
