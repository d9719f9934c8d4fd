// SPDX-License-Identifier: BSD-3-Clause
// The operations that a mirror group begins itself: their memory, and the pauses between them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "bridge/client/mirror/group_host.hpp"
#include "bridge/client/mirror/member_session.hpp"

namespace rnbd::mirror {

/// Copies in the time that requests leave. While there are requests, most of the time belongs to
/// them, so that most of them meet no copy. But copies keep a floor, however slow requests make
/// them: a disk that is written without a pause must become whole, too.
///
/// Threads: the mirror's.
class BackgroundCopies {
 public:
  using Clock = std::chrono::steady_clock;

  /// `rate`: bytes a second at most, of all copies together; 0: any.
  explicit BackgroundCopies(std::uint64_t rate) : rate_{rate} {}

  /// A command of the group's own operation goes out, its first one or a later one.
  void begin(const Command& command, Clock::time_point now);
  /// Has a task use the memory of such an operation, which it keeps. A member that has been read
  /// gets only the part in which its data differ from those of the source. `block`: bytes of its
  /// disk's blocks.
  void lend(const Command& command, std::uint32_t block, Task& task);
  /// The member's session is over: it may have other data from now on.
  void forget(unsigned member);
  /// Those of the members whose data are the same as the data of `source`. All have been read.
  MemberSet same(std::uint64_t operation, MemberSet members, unsigned source) const;
  /// The smallest part of the operation's range, in sectors, outside of which all these members
  /// have the data of `reference`. All have been read, and differ from it.
  Range differing(std::uint64_t operation, MemberSet members, unsigned reference) const;
  /// Begins a pause, perhaps behind a few more: so a pause, which has its own costs, comes behind
  /// 1 MiB. `waiting`: there are requests without an answer.
  void done(std::uint64_t operation, bool waiting, Clock::time_point now);
  /// Likewise. Returns the range that could not be copied, once the operation has sent a command.
  std::optional<Range> failed(std::uint64_t operation, Clock::time_point now);
  /// The group is over, with all its operations.
  void clear() { copies_.clear(), fastest_ = 0; }

  /// The rest to copy has not become less for long: copies get half of the time.
  void set_stalled(bool stalled) { stalled_ = stalled; }
  /// A user's request arrives.
  void requested(Clock::time_point now) { last_request_ = now; }
  /// `waiting`: there are requests without an answer. True: or one came a moment ago.
  bool are_requests(bool waiting, Clock::time_point now) const;
  /// True if one more copy to a member may begin beside those under way: several at once only while
  /// nobody has requests, and no rate is to be kept.
  bool may_begin(unsigned under_way, bool waiting, Clock::time_point now) const;
  /// Copies pause until then.
  std::optional<Clock::time_point> paused_until() const { return resume_at_; }
  /// True, once, when a pause has ended.
  bool resume(Clock::time_point now);

 private:
  using Memory = std::shared_ptr<std::vector<std::byte>>;
  Clock::duration pause_behind_row();
  struct Copy {
    std::array<Memory, kMaxMembers> of{};  ///< what was read from each member
    Clock::time_point began{};
    Range range{};
    bool moves = false;  ///< data, and not zeroes only
  };

  /// Copies in a row, without a pause, while there are requests.
  struct Row {
    Clock::duration took{};
    std::uint64_t bytes = 0;  ///< as they count for the pause
    std::uint64_t moved = 0;  ///< bytes of data
    bool asks = false;        ///< one has moved none, so its time says nothing of the others'
  };

  const std::uint64_t rate_;
  std::map<std::uint64_t, Copy> copies_;
  Row row_;
  std::uint64_t fastest_ = 0;  ///< bytes a second, of a row; the most since the group began
  bool stalled_ = false;
  Clock::time_point last_request_{};
  std::optional<Clock::time_point> resume_at_;
  Clock::time_point due_{};  ///< with the rate, all that has ended would have ended then
};

}  // namespace rnbd::mirror
