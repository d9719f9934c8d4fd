// SPDX-License-Identifier: BSD-3-Clause
// The events that a client's session reports: facts without sentences, which
// rdma/transport/client/notices.cpp has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "rdma/core/path.hpp"
#include "rdma/core/time.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs {

/// The reason why an attempt to connect `path`, the path, or the session ended.
struct Cause {
  enum class Kind : std::uint8_t {
    none,
    transport,      ///< `error` and `text` are the transport's, or the handshake's
    unresponsive,   ///< a connection owes answers and carries nothing
    other_session,  ///< than the other paths have
    other_server,   ///< `server`, where `wanted` had to be
    older_server,   ///< its records are older than the session: a clone
    no_extension,   ///< which ClientSessionOptions::require_extension demands
    no_permit,      ///< to recover the session with: each may be in use at the server
    not_reopened,   ///< with `error`: devices cannot be opened again now
    disconnected,   ///< by command
    removed,        ///< by command
    // The ends of a session:
    closed,          ///< by its user
    forgotten,       ///< by the server, and nobody can recover it
    other_contents,  ///< the server shows other devices than before
    other_limits,    ///< the server grants `has`, which is less than the `had` before
  };

  Cause() = default;
  explicit Cause(Kind what, unsigned where = 0, int why = 0)
      : kind{what}, path{where}, error{why} {}
  Cause(int why, std::string words) : kind{Kind::transport}, error{why}, text{std::move(words)} {}

  bool by_command() const { return kind == Kind::disconnected || kind == Kind::removed; }

  Kind kind = Kind::none;
  unsigned path = 0;
  int error = 0;     ///< errno
  std::string text;  ///< one that names the path, or is about none
  std::uint64_t server = 0;
  std::uint64_t wanted = 0;
  wire::AcceptParameters had = {};
  wire::AcceptParameters has = {};
};

/// One event, with the arguments that its kind has.
struct Notice {
  enum class Kind : std::uint8_t {
    session_up,       ///< `limits`, `count` lanes
    session_lost,     ///< `cause`; of a session that was up
    session_renewed,  ///< on `path`: the server had forgotten it

    path_absent,       ///< `cause`; at first, and it is tried again; `paths` may only join later
    path_refused,      ///< `cause`; at first
    path_unreachable,  ///< `cause`; an attempt to bring it back failed
    path_up,
    path_lost,        ///< `cause`
    path_closed,      ///< `cause`; by command
    path_removed,     ///< by command, and nothing depends on it any more
    path_distrusted,  ///< it carries some connections only
    path_silent,      ///< for `time`; `count` requests go over `paths`, too
    path_answers,     ///< again, after `time`
    path_unsteady,    ///< it has fallen silent again and again
    path_elsewhere,   ///< it leads to another server, while the session's lives
    path_left,        ///< it still has a session that this client has left
    path_better,      ///< the server gives it `access`
    path_worse,       ///< likewise

    paths_in_use,        ///< `paths`
    paths_inaccessible,  ///< all of them, for now

    requests_fail,          ///< no path for too long
    requests_inaccessible,  ///< no accessible path for too long
    requests_overdue,       ///< paths have carried some in vain for too long
    writes_fail,            ///< the server may still carry out writes of `path`
    opens_fail,             ///< likewise a CLOSE, or a cancelled write
    opens_wait,             ///< for the end of cancelled or stranded writes
    opens_go_on,
    writes_wait,  ///< for the end of an older one of their device
  };

  Kind kind;
  unsigned path = 0;
  Cause cause = {};
  PathMask paths = 0;
  wire::PathAccess access = wire::PathAccess::optimized;
  wire::AcceptParameters limits = {};
  std::size_t count = 0;
  Duration time{};
};

/// A condition that is reported once when it has lasted for a while.
class LastingCondition {
 public:
  /// True: now is the moment to report it.
  bool is_due(bool holds, Instant now, Duration patience) {
    if (!holds) {
      since_.reset();
      return false;
    }
    if (!since_) since_ = now;
    if (now - *since_ < patience) return false;
    return !std::exchange(reported_, true);
  }
  /// Lets the next one be reported. True: one was.
  bool rearm() { return std::exchange(reported_, false); }

 private:
  std::optional<Instant> since_;
  bool reported_ = false;
};

}  // namespace rtrs
