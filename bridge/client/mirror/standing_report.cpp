// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/mirror/standing_report.hpp"

#include <algorithm>
#include <system_error>
#include <utility>

#include "bridge/protocol/messages.hpp"
#include "rdma/log_about.hpp"

namespace rnbd::mirror {

StandingReport::StandingReport(std::string device, rtrs::Log log, std::size_t members)
    : device_{std::move(device)}, log_{std::move(log)}, told_(members) {}

void StandingReport::say(rtrs::LogLevel level, const std::string& text) const {
  const rtrs::LogAbout about{{.event = "mirror", .device = device_}};
  if (log_) log_(level, "mirror " + device_ + ": " + text);
}

void StandingReport::progress(unsigned member, const std::string& server,
                              const Membership::Progress& progress, unsigned region_shift) {
  using Standing = Membership::Standing;
  Told& told = told_[member];
  const Standing before = std::exchange(told.standing, progress.standing);
  if (progress.standing == Standing::resync) {
    if (before != Standing::resync) told.to_copy = told.tenths = 0;
    told.to_copy = std::max(told.to_copy, progress.left);
    const std::uint64_t copied = told.to_copy - progress.left;
    const auto tenths = static_cast<unsigned>(told.to_copy == 0 ? 0 : copied * 10 / told.to_copy);
    if (tenths <= told.tenths && before == Standing::resync) return;
    told.tenths = tenths;
    const std::uint64_t left = std::uint64_t{progress.left} << region_shift >> 20;
    return say(rtrs::LogLevel::info,
               server + " is being brought up to date: " + std::to_string(tenths * 10) + " %, " +
                   std::to_string(left) + " MiB left");
  }
  if (progress.standing == before) return;
  if (progress.standing == Standing::in_step) {
    ++returns_;
    told.to_copy = 0;
    say(rtrs::LogLevel::info, server + " is in step");
  }
}

void StandingReport::lost(unsigned member, const std::string& server, const std::string& trouble,
                          int error) {
  ++losses_;
  told_[member].standing = Membership::Standing::away;
  std::string why = trouble;
  if (why.empty()) {
    why = "see its log";
    if (error != 0) why += ", " + std::generic_category().message(error);
  }
  say(rtrs::LogLevel::warning, server + " is lost; the others go on: " + why);
}

void StandingReport::unreadable(const Range& range) {
  if (!told_regions_.insert(range.begin).second) return;
  say(rtrs::LogLevel::error,
      std::to_string((range.end - range.begin) * wire::kSectorSize) + " bytes from byte " +
          std::to_string(range.begin * wire::kSectorSize) +
          " on cannot be read from any server in step, so the others do not get them; that is "
          "tried again and again; if another server has a better copy of the disk, stop this "
          "client and see docs/mirror.md");
}

void StandingReport::unequal(const Range& range, int error) {
  if (!told_regions_.insert(range.begin).second) return;
  say(rtrs::LogLevel::error,
      std::to_string((range.end - range.begin) * wire::kSectorSize) + " bytes from byte " +
          std::to_string(range.begin * wire::kSectorSize) +
          " on differ among the servers, none of which takes the data of another one: " +
          std::generic_category().message(error) +
          "; reads there wait, and that is tried again and again; make room on the servers");
}

void StandingReport::begin_verify(const std::string& from) {
  told_differences_ = 0;
  say(rtrs::LogLevel::info,
      "the copies are compared" +
          (from.empty() ? "" : "; where they differ, the others get the data of " + from));
}

/// A disk of which nothing is right would fill the log.
void StandingReport::differs(const Range& range, const std::string& reference,
                             const std::string& different, const std::string& alike,
                             const std::string& unreadable) {
  constexpr unsigned kMostLines = 100;
  ++differences_;
  if (++told_differences_ > kMostLines + 1) return;
  if (told_differences_ > kMostLines)
    return say(rtrs::LogLevel::error, "there are more differences, which are only counted");
  std::string text = std::to_string((range.end - range.begin) * wire::kSectorSize) +
                     " bytes from byte " + std::to_string(range.begin * wire::kSectorSize) + " on";
  if (!different.empty()) text += " differ between " + reference + " and " + different;
  if (!alike.empty()) text += "; the same data have " + alike;
  if (!unreadable.empty())
    text +=
        (different.empty() ? " cannot be read from " : "; they cannot be read from ") + unreadable;
  say(rtrs::LogLevel::error, text);
}

void StandingReport::end_verify(const Verification& pass) {
  using State = Verification::State;
  const bool equal = pass.state == State::done && pass.different == pass.repaired;
  std::string text = "the comparison of the copies ";
  text += pass.state == State::done ? "has ended: " : "was not completed: ";
  text += std::to_string(pass.different) + " differences";
  if (pass.repairs()) text += ", " + std::to_string(pass.repaired) + " of them repaired";
  say(equal ? rtrs::LogLevel::info : rtrs::LogLevel::warning, text);
}

/// They may be different disks all the same: virtual machines mostly give theirs the same serial
/// number.
void StandingReport::same_disk(const std::string& server, const std::string& other) {
  if (!told_disks_.insert(std::min(server, other) + ' ' + std::max(server, other)).second) return;
  say(rtrs::LogLevel::warning, server + " and " + other +
                                   " have disks with the same UUID: if both export the same "
                                   "storage, the mirror has one copy "
                                   "less than it seems; see the serial numbers of the disks");
}

}  // namespace rnbd::mirror
