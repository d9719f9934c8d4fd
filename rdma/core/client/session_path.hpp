// SPDX-License-Identifier: BSD-3-Clause
// The record of one path of a session, from one generation of the path to the next.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "rdma/core/client/distrust.hpp"
#include "rdma/core/client/notice.hpp"
#include "rdma/core/client/other_server.hpp"
#include "rdma/core/client/path.hpp"
#include "rdma/core/heartbeat.hpp"
#include "rdma/core/path.hpp"

namespace rtrs {

/// The rank of a path (0 = wanted most), and the kind of its server: Linux may be behind it.
struct SessionPathOptions {
  unsigned rank = 0;
  bool may_be_linux = false;
  bool data_rides_with_reply = false;
  /// The path's other end is the server by definition; other paths have to prove that theirs is.
  bool names_server = false;
};

/// A path by its number. Its functions are the transitions of its state (docs/architecture.md, a
/// path).
///
/// Invariant: `core` is there unless the path was never tried.
/// Threads:   belongs to one session; pure, the time is an argument.
struct SessionPath {
  enum class Standing : std::uint8_t {
    free,   ///< the number has no path
    stays,  ///< the path is one of the session's
    leaves  ///< it was removed, and the server may still carry out what it carried
  };

  SessionPathOptions options{};
  wire::Uuid uuid{};
  Standing standing = Standing::stays;
  PathState state = PathState::waiting;
  std::unique_ptr<ClientPath> core{};
  std::uint16_t attempts = 0;
  unsigned failures = 0;     ///< since it was connected for longer than a pause
  unsigned turned_away = 0;  ///< since it was connected: see ClientPath::turned_away()
  std::uint64_t connects = 0;
  Instant due{};       ///< waiting: the next attempt
  Instant up_since{};  ///< connected since
  Instant since{};     ///< connected: from when on it has been so good, or better
  /// Until then the server may be back any moment, because it was there for long enough before.
  Instant back_soon_until{};
  wire::PathAccess access = wire::PathAccess::optimized;  ///< the server's latest
  /// The path has led to the server: a permit may be bound to it, which no other path can free.
  bool proven = false;
  bool foreign = false;     ///< the last attempt led to another server, by all that it said
  bool may_be_new = false;  ///< the attempt may have made a session anew at the server
  OtherServer other_server{};
  bool by_order = false;  ///< the operator has told to go on at an older server
  /// Changes that were in flight then wait for the path, or for another session.
  std::optional<Instant> lost_at{};
  std::optional<Instant> lost_before{};  ///< connected: the lost_at before
  Cause trouble{};
  ProbePatience patience{};
  Distrust distrust{};
  Silences silences{};

  bool exists() const { return standing != Standing::free; }
  bool leaving() const { return standing == Standing::leaves; }
  /// The access state that the server gave when the path was connected last.
  std::optional<wire::PathAccess> last_access() const {
    if (connects == 0) return std::nullopt;
    return access;
  }
  bool may_carry() const { return state == PathState::connected && core->accessible(); }
  bool may_be_used() const { return may_carry() && !leaving(); }
  /// Lower is better. First counts that the path carries its requests, then the server's access
  /// state, then the kind of transport.
  unsigned rank() const {
    const unsigned trust = distrust.active() ? kDistrusted : 0;
    return trust + static_cast<unsigned>(access) * kClasses + options.rank;
  }
  static constexpr unsigned kDistrusted = 1024;  ///< all ranks from here on
  static constexpr unsigned kClasses = 64;       ///< ranks of one access state

  /// Begins an attempt: a new generation of the path. `common`: the options of all paths.
  ClientPath& begin(ClientPathOptions common);
  void connected(Instant now);
  /// A generation of the connected path ends, `in_vain` as in ClientSession::lost(). `pause`: the
  /// longest pause before an attempt. Returns whether the path was of use.
  bool generation_ended(Instant now, bool in_vain, Duration pause);
  /// An attempt has failed: the server was there, and had no room.
  bool was_turned_away(const Cause& why) const;
  void disconnect(unsigned number);
  /// Allows an attempt at once.
  void reconnect(Instant now);
  void distrust_ends_by(Instant now);
  /// The local stall of this process does not count.
  void put_off(Duration stall, Instant now);
};

}  // namespace rtrs
