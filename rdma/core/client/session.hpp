// SPDX-License-Identifier: BSD-3-Clause
// A client's session over all its paths: which of them to connect when, which session the server
// says it is, which paths carry I/O, when to stop waiting. Decisions only; a driver acts on them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rdma/core/client/notice.hpp"
#include "rdma/core/client/outage_clock.hpp"
#include "rdma/core/client/path.hpp"
#include "rdma/core/client/session_path.hpp"
#include "rdma/core/path.hpp"

namespace rtrs {

struct ClientSessionOptions {
  /// The common options of all paths. Uuids, counts and the transport's properties are filled in.
  ClientPathOptions path;
  using Path = SessionPathOptions;
  std::vector<Path> paths;
  std::uint64_t server_id = 0;    ///< of the server, if that is known; 0 = it is not
  bool only_this_server = false;  ///< also the paths that name it must lead to that one
  Duration no_path_timeout{};     ///< 0 = for ever
  Duration reconnect_min{};
  Duration reconnect_max{};
  Duration settle_time{};
  bool require_extension = false;
};

/// Threads: one at a time (the driver's background thread; the simulator).
/// Source:  docs/protocol.md, several paths, RTRS extension.
class ClientSession {
 public:
  /// The result of connecting a path.
  enum class Welcome : std::uint8_t {
    first,     ///< the session is new, and nothing was ever sent
    joined,    ///< the session that we have
    renewed,   ///< the server has forgotten the session, this is another one
    stranger,  ///< another server's session: the path must be closed
    changed,   ///< like renewed, but with less than the client works with
    left,      ///< a session of this client's, from before a renewal: the server must forget it
    unfit,     ///< the server lacks a required feature
    foreign,   ///< another server, or one that may be: the path must be closed
  };

  /// `random` yields 64 random bits.
  ClientSession(ClientSessionOptions options, std::function<std::uint64_t()> random);

  /// Paths are numbered below this; a number may be free.
  unsigned path_count() const { return static_cast<unsigned>(paths_.size()); }
  /// The record of a path.
  const SessionPath& at(unsigned path) const { return paths_[path]; }
  /// One more path, which is due at once: its number. None: no number is free.
  std::optional<unsigned> add(const ClientSessionOptions::Path& path, Instant now);
  /// The path is to go when the server has certainly ended its requests. Until then it takes no new
  /// requests if others can, and is connected again when it is lost.
  void leave(unsigned path, Instant now);
  /// It need not go after all.
  void stay(unsigned path) { paths_[path].standing = SessionPath::Standing::stays; }
  void set_rank(unsigned path, unsigned rank) { paths_[path].options.rank = rank; }
  /// The path is gone, its number free: it must not be connected, and no lane bound to it. Another
  /// one has been connected, and names the server if this one did.
  void remove(unsigned path);

  /// An attempt may lead somewhere: there is a session to join, or the path may begin or renew one.
  bool may_try(unsigned path) const { return has_path() || may_begin(path); }
  /// The id that the server gives; 0 = it gives none, or there was none yet.
  std::uint64_t server_id() const { return options_.server_id; }

  /// The first path with an attempt that is due.
  std::optional<unsigned> connect_due(Instant now) const;
  /// Begins an attempt: a new life of the path.
  ClientPath& begin(unsigned path);
  ClientPath& path(unsigned path) { return *paths_[path].core; }
  const ClientPath& path(unsigned path) const { return *paths_[path].core; }

  /// The infos have been exchanged.
  Welcome judge(unsigned path);
  /// The path carries requests from now on. The first path of a session decides which one it is.
  void connected(unsigned path, Instant now);
  /// The attempt failed or the path died. The next attempt is due after a pause. Requests
  /// that went over it `in_vain`, because it ended soon and before it had answered any of them,
  /// have waited all the time (give_up_waiting(), overdue()).
  void lost(unsigned path, Instant now, const Cause& why, bool in_vain = false);
  /// A connection of the path owes answers and carries nothing, while others live: a smaller MTU on
  /// the way than the hosts believe, say. To be followed by lost(). It would look well as soon as
  /// it is connected again, and fail as soon as it is used. So it takes no requests for a while,
  /// twice as long each time, as long as there is another one.
  void distrust(unsigned path, Instant now) { paths_[path].distrust.begin(now); }
  /// `silence`: of the connection of the path that owes answers and says nothing for longest, in
  /// intervals. Others have lived meanwhile.
  bool lives_in_part(unsigned path, unsigned silence) const;
  /// At each heartbeat interval: whether all connections of the path live.
  void lives(unsigned path, Instant now) { paths_[path].patience.on_alive(now); }
  void looks_dead(unsigned path, Instant now);
  /// How many intervals a connection of the path may be silent that owes answers. More after it has
  /// looked dead (ProbePatience), unless requests can do without it.
  unsigned misses_max(unsigned path) const {
    return paths_[path].patience.misses_max(options_.path.heartbeat_misses);
  }
  /// By command; no attempt is made until reconnect(), which also ends the pause before the next
  /// attempt.
  void disconnect(unsigned path, Instant now);
  void reconnect(unsigned path, Instant now) { paths_[path].reconnect(now); }

  /// The server has changed its mind about a path (ClientPath::access()). True: to the worse.
  bool access_changed(unsigned path, Instant now);

  /// To be asked at each heartbeat, at each next_event(), and whenever a path is lost: how long
  /// this process itself stood still, if it did. The session's own waits are put off by it.
  std::optional<Duration> own_pause(Instant now);
  /// The caller itself was busy until now (a device lets go of a connection, say): that is no local
  /// stall.
  void was_busy(Instant now) {
    if (awake_at_) awake_at_ = now;
  }

  bool has_path() const { return connected_ > 0; }
  /// Whether some path may carry requests, if need be one that is leaving, and since when none can.
  const OutageClock& outages() const { return outages_; }
  bool was_up() const { return was_up_; }
  /// True once when requests have waited for too long for a path that may carry them.
  bool give_up_waiting(Instant now) { return outages_.give_up(now); }
  /// A path that has been away for so long that its waiting writes must fail. Once for each loss,
  /// and only for servers without generations: with others no request waits for one certain path.
  std::optional<unsigned> overdue(Instant now);
  /// The paths that take new requests.
  PathMask in_use(Instant now);
  /// When to ask own_pause(), connect_due(), give_up_waiting(), overdue() and in_use() again.
  Instant next_event() const;

  /// The limits that the session was granted first, and keeps: a server that has come back may
  /// grant more.
  const wire::AcceptParameters& accepted() const { return accepted_; }
  /// For a memory path of this session, as it is now.
  ClientPathOptions memory_path();

 private:
  void name_another();
  bool may_begin(unsigned path) const;
  bool decides(unsigned path) const;
  std::optional<std::uint64_t> required_id(unsigned path) const;
  bool leads_elsewhere(unsigned path) const;
  bool trusted_without(unsigned path) const;
  void leave_epoch_of(const wire::AcceptParameters& known);
  void look_for_usable(Instant now, bool was_of_use = true);

  ClientSessionOptions options_;
  std::function<std::uint64_t()> random_;
  std::vector<SessionPath> paths_;
  wire::AcceptParameters accepted_;
  std::uint16_t granted_depth_ = 0;  ///< by the server's session as it is now
  std::vector<std::uint64_t> left_;  ///< epochs from before renewals, the newest last
  unsigned connected_ = 0;
  std::optional<Instant> awake_at_;  ///< when own_pause() was asked last, if it was up
  bool was_up_ = false;
  unsigned rank_ = ~0U;  ///< of the paths in use
  OutageClock outages_;
};

}  // namespace rtrs
