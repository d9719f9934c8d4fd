// SPDX-License-Identifier: BSD-3-Clause
// The steps that an OPEN and a CLAIM have in common. They may hang in a disk, but keep the client
// waiting for a limited time only.
#pragma once

#include <functional>
#include <string>

#include "bridge/server/opening.hpp"
#include "bridge/server/session_parts.hpp"

namespace rnbd {

/// Work on another thread, other writers in the way, and the reservation. OpenStep has the states.
/// At the end of each it calls the opening's `answer`, or the function that it was given. An
/// opening keeps its session until it is over.
///
/// Threads: the reactor of the session.
class OpeningSteps {
 public:
  explicit OpeningSteps(const SessionParts& session) : session_{session} {}

  /// Runs `work`, which may hang, on another thread, behind other work of this line. Then runs
  /// `then`, unless the opening is late. Refuses the opening if the line hangs, or
  /// with the errno of an exception of `work`.
  void work(const OpeningPtr& opening, OpenStep step, std::string line, std::function<void()> work,
            std::function<void()> then);
  /// The same for work that is of use, but not needed: `then` runs after 3 s at the latest, also if
  /// the line hangs, and whatever came of the work.
  void work_for_a_moment(const OpeningPtr& opening, OpenStep step, std::string line,
                         std::function<void()> work, std::function<void()> then);
  /// Another session may write to the storage. Its client may be gone and return later. Ends such
  /// sessions or waits for one that leaves, then calls `again`. False: there is no other session to
  /// ask. A returning client takes no right from others, and may find that it must not write.
  bool make_room(const OpeningPtr& opening, const WriterCount* storage,
                 std::function<void()> again);
  /// Reserves before anything is written, but never beside an earlier reservation of the same
  /// device: its CLOSE, still in progress, would undo the next write. A session that migrates joins
  /// the present writers, but not one that was cut off.
  void reserve(const OpeningPtr& opening, Lease lease);
  /// A late OPEN may hold the right to write. That is no reason to lose a device.
  bool may_be_its_own(int error) const;

 private:
  void limit(const OpeningPtr& opening);
  void abandon(const OpeningPtr& opening);
  void give_up(const OpeningPtr& opening);
  bool wait_for_leaver(const OpeningPtr& opening, std::function<void()> again);
  static void enter_room(Opening& opening);
  static void leave_room(Opening& opening, const std::function<void()>& again);
  void record(const OpeningPtr& opening);
  void end_reservation(const OpeningPtr& opening, Opening::Result result);
  bool is_closing(const WriterCount* storage) const;

  const SessionParts& session_;
};

}  // namespace rnbd
