// SPDX-License-Identifier: BSD-3-Clause
// The steps that an OPEN and a CLAIM have in common. They may hang in a disk, but keep the client
// waiting for a limited time only.
#pragma once

#include <functional>
#include <string>

#include "bridge/server/opening.hpp"
#include "bridge/server/session_parts.hpp"

namespace rnbd {

/// Work on another thread, other writers in the way, and the reservation; OpenStep has the states.
/// An opening keeps its session until it is answered.
///
/// Threads: the reactor of the session.
class OpeningSteps {
 public:
  using Result = Opening::Result;
  /// Other writers: the next attempt may succeed, there is nobody to ask, or the opening is late.
  enum class Room : std::uint8_t { made, none, late };

  explicit OpeningSteps(const SessionParts& session) : session_{session} {}

  /// Runs `work`, which may hang, on another thread, behind other work of this line.
  ///
  /// Errors: EAGAIN when the line hangs or the opening is late, or the errno of an exception of
  ///         `work`. Its results are not to be trusted then.
  Task<tl::expected<void, Failure>> work(Opening& opening, OpenStep step, std::string line,
                                         std::function<void()> work);
  /// The same for work that is of use, but not needed. It is awaited for 3 s at most, and not at
  /// all if the line hangs. Any result of it is good enough. False: the opening is late.
  Task<bool> work_for_a_moment(Opening& opening, OpenStep step, std::string line,
                               std::function<void()> work);
  /// Another session may write to the storage. Its client may be gone and return later. Ends such
  /// sessions, or waits for one that leaves. A returning client takes no right from others, and may
  /// find that it must not write.
  Task<Room> make_room(Opening& opening, const WriterCount* storage);
  /// Reserves before anything is written, but never beside an earlier reservation of the same
  /// device: its CLOSE, still in progress, would undo the next write. A session that migrates joins
  /// the present writers, but not one that was cut off.
  Task<Result> reserve(Opening& opening, Lease lease);
  /// Ends the opening with its answer. Then messages go on that its reservation has held up. The
  /// session may end with the last answer.
  void end(Opening& opening, const std::function<void()>& answer);
  /// A late OPEN may hold the right to write. That is no reason to lose a device.
  bool may_be_its_own(int error) const;
  /// The refusal of an opening that has taken too long in this step.
  static Failure too_late(const Opening& opening);

 private:
  void limit(Opening& opening);
  void abandon(Opening& opening);
  bool begin_work(Opening& opening, std::function<void()> work);
  bool begin_moment(Opening& opening, const std::string& line, std::function<void()> work,
                    const std::shared_ptr<bool>& waits);
  bool is_closing(const WriterCount* storage) const;

  const SessionParts& session_;
};

}  // namespace rnbd
