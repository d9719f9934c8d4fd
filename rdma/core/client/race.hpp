// SPDX-License-Identifier: BSD-3-Clause
// The race between a connection that is silent and others that answer.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <utility>

#include "rdma/core/path.hpp"
#include "rdma/core/time.hpp"

namespace rtrs {

enum class RaceState : std::uint8_t {
  calm,    ///< no question is under way
  asked,   ///< the answer is awaited
  outrun,  ///< likewise, and another connection has answered meanwhile
  silent,  ///< likewise, and it has had the time to answer as well
};

enum class RaceEvent : std::uint8_t {
  asks,     ///< a question is sent
  arrival,  ///< something has come
  answer,   ///< to the question
  outrun,   ///< a witness has answered a question that is no older
  beaten,   ///< by a witness
};

namespace race_table {

struct Row {
  RaceEvent event;
  RaceState state;
  RaceState next;
};

inline constexpr Row kRows[] = {
    // event, state, next
    {RaceEvent::asks, RaceState::calm, RaceState::asked},
    {RaceEvent::arrival, RaceState::calm, RaceState::calm},
    {RaceEvent::arrival, RaceState::asked, RaceState::asked},
    {RaceEvent::arrival, RaceState::outrun, RaceState::asked},
    {RaceEvent::arrival, RaceState::silent, RaceState::asked},
    {RaceEvent::answer, RaceState::asked, RaceState::calm},
    {RaceEvent::answer, RaceState::outrun, RaceState::calm},
    {RaceEvent::answer, RaceState::silent, RaceState::calm},
    {RaceEvent::outrun, RaceState::asked, RaceState::outrun},
    {RaceEvent::outrun, RaceState::outrun, RaceState::outrun},
    {RaceEvent::outrun, RaceState::silent, RaceState::silent},
    {RaceEvent::beaten, RaceState::outrun, RaceState::silent},
};

}  // namespace race_table

/// None: that cannot happen in this state.
constexpr std::optional<RaceState> next_state(RaceState state, RaceEvent event) {
  for (const race_table::Row& row : race_table::kRows) {
    if (row.event == event && row.state == state) return row.next;
  }
  return std::nullopt;
}

/// A connection of a lane, in the race with the lane's connections on other paths. One that owes
/// answers and says nothing is asked, and so are the others, the witnesses. A question is a
/// heartbeat, which a server answers on the same connection, however slow its storage is. A
/// connection is outrun that has not answered when a witness has, and some time after that it is
/// beaten. No clock decides alone: where server or client stand still, witnesses say nothing
/// either.
///
/// Witnesses are asked again and again meanwhile, so that one that falls silent a moment after
/// another is outrun itself before any request moves.
///
/// A connection that says nothing for some heartbeat intervals is dead, with or without a witness,
/// even if the path's other connections live.
///
/// Invariant: `outrun` and `silent` only behind a question, and only until something comes. One
///            question is under way at a time.
/// Threads:   the holder of the lane; pure, the time is an argument.
/// Source:    docs/protocol.md, heartbeats, races.
class Race {
 public:
  /// The connection is a new one.
  void restart(std::uint64_t received) {
    *this = Race{};
    seen_ = received;
  }
  /// At each look, before the questions below. `received`: arrivals so far; `owes`: answers to
  /// requests are due. True: something is due and nothing has come since the last look, so that
  /// on_carried() is to be told.
  [[nodiscard]] bool look(Instant now, std::uint64_t received, bool owes);
  /// The bytes that the connection has carried so far, QueuePair::carried(). A connection whose
  /// bytes move is not silent, although a large message may take long to be complete.
  void on_carried(Instant now, std::uint64_t bytes);
  /// Something is due, and nothing has come for so long that the connection is to be asked.
  bool quiet(Instant now, std::uint64_t received) const {
    return owed_ && received == seen_ && now - heard_at_ >= std::max(kQuiet, 2 * rtt_);
  }
  bool is_calm() const { return state_ == RaceState::calm; }
  bool silent() const { return state_ == RaceState::silent; }
  bool is_outrun() const { return state_ == RaceState::outrun || silent(); }
  /// When a message came last, or bytes moved, or nothing was due, as far as the looks tell.
  Instant heard_at() const { return heard_at_; }

  /// At each heartbeat interval, after a look. False: something was due, and nothing has come and
  /// no bytes have moved, for more than `misses_max` intervals before this one.
  [[nodiscard]] bool on_interval(unsigned misses_max);
  /// Intervals in which something was due and nothing came.
  unsigned silence() const { return missed_; }
  /// Something has come since the last interval, or bytes have moved. `received`: as above.
  bool lives(std::uint64_t received) const { return lives_ || received != seen_; }

  /// Questions so far. Answers come in the order of the questions, and behind those to requests
  /// that the server had before.
  std::uint64_t asked() const { return questions_; }
  std::uint64_t answered() const { return is_calm() ? questions_ : questions_ - 1; }
  void on_asked(Instant now);
  void on_answered(Instant now);
  /// `witness` outruns this one.
  void on_outrun(const Race& witness);
  void on_beaten() { step(RaceEvent::beaten); }

  /// This one has answered a question that was sent no earlier than those to `quiet_one`.
  bool outruns(const Race& quiet_one) const {
    return asked_ >= quiet_one.since() && answered_ > quiet_one.heard_at_;
  }
  /// True: it was outrun so long ago that it should have answered by now.
  bool is_due(Instant now) const { return is_outrun() && now >= due_; }

 private:
  static constexpr Duration kQuiet = std::chrono::milliseconds{100};
  static constexpr Duration kGrace = std::chrono::milliseconds{100};
  static constexpr Duration kLongestRtt = std::chrono::milliseconds{250};
  /// Bytes that move. Fewer may be an acknowledged question, on a path that loses large messages.
  static constexpr std::uint64_t kMoves = 512;

  /// A witness is asked no earlier.
  Instant since() const { return std::max(question_, heard_at_); }
  void step(RaceEvent event);

  RaceState state_ = RaceState::calm;
  bool owed_ = false;    ///< at the last look, or since a question
  bool lives_ = false;   ///< something has come since the last interval, or bytes have moved
  unsigned missed_ = 0;  ///< intervals
  std::uint64_t questions_ = 0;
  std::uint64_t seen_ = 0;
  std::optional<std::uint64_t> carried_;  ///< bytes, when some had moved; none: not asked yet
  Instant heard_at_{};              ///< the look that found a sign of life last, see heard_at()
  Instant question_{};              ///< when the newest question was sent
  Instant asked_ = Instant::min();  ///< when the last answered question was sent
  Instant answered_ = Instant::min();
  Instant due_ = Instant::max();  ///< outrun: when it should have answered
  Duration rtt_{};
};

/// The findings of a look at the races of a lane, or of all lanes of a session.
struct Raced {
  PathMask silent = 0;             ///< beaten on some lane, and nothing has come since
  PathMask answers = 0;            ///< has beaten one of them
  unsigned moved = 0;              ///< requests
  Instant since = Instant::max();  ///< when something came last from a connection that was beaten

  Raced& operator+=(const Raced& more) {
    silent = static_cast<PathMask>(silent | more.silent);
    answers = static_cast<PathMask>(answers | more.answers);
    moved += more.moved;
    since = std::min(since, more.since);
    return *this;
  }
};

}  // namespace rtrs
