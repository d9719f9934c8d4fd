// SPDX-License-Identifier: BSD-3-Clause
// A mirror's log lines about its members.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "bridge/client/mirror/membership.hpp"
#include "bridge/client/mirror/verification.hpp"
#include "rdma/log.hpp"

namespace rnbd::mirror {

/// Tells people when a member is lost, how far its resync is, and that it is in step again. Nothing
/// is said twice.
///
/// Threads: the mirror's.
class StandingReport {
 public:
  /// `device`: of the mirror, with which each line begins.
  StandingReport(std::string device, rtrs::Log log, std::size_t members);

  void say(rtrs::LogLevel level, const std::string& text) const;
  /// A line whenever a member is in step, and for each tenth of its resync.
  void progress(unsigned member, const std::string& server, const Membership::Progress& progress,
                unsigned region_shift);
  /// At once: it may be back before the next report. `trouble`: why, or "". `error`: a positive
  /// errno with which it answered, or 0.
  void lost(unsigned member, const std::string& server, const std::string& trouble, int error);

  /// No member in step can read a region, so its copy waits.
  void unreadable(const Range& range);
  /// No member in step can take the data that another one has in a region. `error`: a positive
  /// errno.
  void unequal(const Range& range, int error);
  /// Two servers have opened disks with the same UUID.
  void same_disk(const std::string& server, const std::string& other);

  // A comparison of the copies.
  /// `from`: the server whose data the others get; "": they stay as they are.
  void begin_verify(const std::string& from);
  /// The servers `different` have other data than `reference`, and those in `alike` the same as
  /// each other. None of them: it cannot be read from the servers `unreadable`.
  void differs(const Range& range, const std::string& reference, const std::string& different,
               const std::string& alike, const std::string& unreadable);
  void end_verify(const Verification& pass);
  std::uint64_t differences() const { return differences_; }

  std::uint32_t to_copy(unsigned member) const { return told_[member].to_copy; }
  std::uint64_t losses() const { return losses_; }
  std::uint64_t returns() const { return returns_; }

 private:
  struct Told {
    Membership::Standing standing = Membership::Standing::away;
    std::uint32_t to_copy = 0;  ///< regions, when its resync began
    unsigned tenths = 0;
  };

  const std::string device_;
  const rtrs::Log log_;
  std::vector<Told> told_;
  std::set<std::uint64_t> told_regions_;  ///< first sectors of those that had a line
  std::set<std::string> told_disks_;      ///< names of two servers
  std::uint64_t losses_ = 0;
  std::uint64_t returns_ = 0;
  std::uint64_t differences_ = 0;
  unsigned told_differences_ = 0;  ///< of the newest comparison
};

}  // namespace rnbd::mirror
