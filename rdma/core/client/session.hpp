// SPDX-License-Identifier: BSD-3-Clause
// A client's session over all its paths. Decides when to connect each path, whether it leads to the
// session, which paths carry I/O, and when requests have waited for too long.
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
  std::uint64_t server_id = 0;    ///< of the server that paths must lead to; 0 = unknown
  bool only_this_server = false;  ///< the naming path, too, must lead to `server_id`
  Duration no_path_timeout{};     ///< the longest wait of requests for a path; 0 = for ever
  Duration reconnect_min{};
  Duration reconnect_max{};
  Duration settle_time{};  ///< a better path must be steady for so long before it is used
  bool require_extension = false;
};

/// The records of a session's paths, and the decisions about them. ClientMachine turns them into
/// actions.
///
/// Threads: one at a time (the driver's background thread; the simulator).
/// Source:  docs/protocol.md, several paths, RTRS extension.
class ClientSession {
 public:
  /// The session to which a path leads.
  enum class Welcome : std::uint8_t {
    first,     ///< the session is new, and nothing was ever sent
    joined,    ///< the session that the client has
    renewed,   ///< another one: the server has forgotten the session
    stranger,  ///< another one than the other paths have: the path must be closed
    changed,   ///< as renewed, but the server grants less than the client works with
    left,      ///< one that this client left when it recovered: the server must forget it
    unfit,     ///< none: the server lacks a required feature
    foreign,   ///< one of another server, or of one that may be: the path must be closed
  };

  /// `random` yields 64 random bits.
  ClientSession(ClientSessionOptions options, std::function<std::uint64_t()> random);

  /// Paths are numbered below this; a number may be free.
  unsigned path_count() const { return static_cast<unsigned>(paths_.size()); }
  /// The record of a path.
  const SessionPath& at(unsigned path) const { return paths_[path]; }
  /// Adds a path, which is due at once, and returns its number. None: no number is free.
  std::optional<unsigned> add(const ClientSessionOptions::Path& path, Instant now);
  /// Begins to remove a path. It goes when the server has certainly ended its requests. Until then
  /// it takes no new requests if others can, and is connected again when it is lost.
  void leave(unsigned path, Instant now);
  /// Takes leave() back.
  void stay(unsigned path) { paths_[path].standing = SessionPath::Standing::stays; }
  void set_rank(unsigned path, unsigned rank) { paths_[path].options.rank = rank; }
  /// Removes a path and frees its number. The path must not be connected, no lane may be bound to
  /// it, and another path must have led to the server. If this was the naming path, that one
  /// becomes it.
  void remove(unsigned path);

  /// True: the path may be connected. It needs a session to join, or the right to begin one.
  bool may_try(unsigned path) const { return has_path() || may_begin(path); }
  /// The server's id; 0 = the server has none, or it is not known yet.
  std::uint64_t server_id() const { return options_.server_id; }

  /// The first path that is due to be connected.
  std::optional<unsigned> connect_due(Instant now) const;
  /// Begins an attempt to connect the path, which is a new generation of it.
  ClientPath& begin(unsigned path);
  ClientPath& path(unsigned path) { return *paths_[path].core; }
  const ClientPath& path(unsigned path) const { return *paths_[path].core; }

  /// Says to which session a path leads that has exchanged the infos.
  Welcome judge(unsigned path);
  /// The path carries requests from now on. While no other path does, its session becomes the
  /// client's.
  void connected(unsigned path, Instant now);
  /// The attempt failed or the path was lost; the next attempt is due after a pause. `in_vain`: the
  /// path had requests and answered none. If it also was lost soon, its generation does not
  /// interrupt the wait of these requests (give_up_waiting(), overdue()).
  void lost(unsigned path, Instant now, const Cause& why, bool in_vain = false);
  /// Keeps requests off a path for a while, as long as there is another one. A connection of this
  /// path owed answers and carried nothing, while its others lived; a small MTU on the way can
  /// cause that. Such a path can be connected again at once, and fails at once when it is used.
  /// Each time, the distrust lasts twice as long. To be followed by lost(). A path that stands is
  /// distrusted by fell_silent() only.
  void distrust(unsigned path, Instant now) { paths_[path].distrust.begin(now); }
  /// A connection of the path is silent, and said something last at `since`. True: this happens
  /// again and again, so that the path is distrusted from now on.
  bool fell_silent(unsigned path, Instant since, Instant now);
  /// Something has come from all that were silent.
  void answers_again(unsigned path) { paths_[path].silences.end(); }
  /// True: a connection of the path was dead while others lived. `silence`: heartbeat intervals
  /// since the last arrival on the most silent of the connections with answers due.
  bool lives_in_part(unsigned path, unsigned silence) const;
  /// All connections of the path live. Call it at each heartbeat interval.
  void lives(unsigned path, Instant now) { paths_[path].patience.on_alive(now); }
  /// A connected path has been heard. Call it at each heartbeat interval. Returns the paths that
  /// are now known to lead to another server, since this one still hears from the session's. They
  /// renew no session until they join this one or reconnect() is called.
  PathMask heard(unsigned path);
  /// True: the path leads to another server, as heard() has found.
  bool is_elsewhere(unsigned path) const;
  /// Some connection of the path seems dead. Call it before lost().
  void looks_dead(unsigned path, Instant now);
  /// The number of heartbeat intervals for which a connection of the path may be silent while
  /// answers are due. It grows when the path looks dead (ProbePatience) and no other can replace
  /// it.
  unsigned misses_max(unsigned path) const {
    return paths_[path].patience.misses_max(options_.path.heartbeat_misses);
  }
  /// Command: closes the path, and makes no attempt until reconnect(). That also ends the pause of
  /// a path that failed.
  void disconnect(unsigned path, Instant now);
  void reconnect(unsigned path, Instant now) { paths_[path].reconnect(now); }

  /// The server has changed the access state of a path (ClientPath::access()). True: to a worse
  /// one.
  bool access_changed(unsigned path, Instant now);

  /// Returns how long this process itself stood still, if it did, and puts off the session's own
  /// waits by that. To be called at each heartbeat, at each next_event(), and whenever a path is
  /// lost.
  std::optional<Duration> own_pause(Instant now);
  /// The caller itself was busy until now, for example while an RDMA device destroyed a connection.
  /// own_pause() does not count that.
  void was_busy(Instant now) {
    if (awake_at_) awake_at_ = now;
  }

  bool has_path() const { return connected_ > 0; }
  /// The outages: times in which no path could carry requests, not even one that is leaving.
  const OutageClock& outages() const { return outages_; }
  bool was_up() const { return was_up_; }
  /// True once when requests have waited for too long for a path that may carry them.
  bool give_up_waiting(Instant now) { return outages_.give_up(now); }
  /// Returns a path that has been away for so long that its waiting writes must fail, once for each
  /// loss. None for servers with generations: there any path can carry a waiting request.
  std::optional<unsigned> overdue(Instant now);
  /// The paths that take new requests.
  PathMask in_use(Instant now);
  /// The time to ask own_pause(), connect_due(), give_up_waiting(), overdue() and in_use() again.
  Instant next_event() const;

  /// The server's grant for the newest session, but with the max_io_size and queue_depth of the
  /// first one. A server that has come back may grant more, and callers keep the limits that they
  /// know.
  const wire::AcceptParameters& accepted() const { return accepted_; }
  /// The options of a new memory path of this session.
  ClientPathOptions memory_path();

 private:
  void name_another();
  bool may_begin(unsigned path) const;
  bool decides(unsigned path) const;
  std::optional<std::uint64_t> required_id(unsigned path) const;
  bool leads_elsewhere(unsigned path) const;
  bool is_ours(const wire::AcceptParameters& now) const;
  void note_refusal(unsigned path, const Cause& why);
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
  std::optional<Instant> awake_at_;  ///< when own_pause() was asked last; none: was never up
  bool was_up_ = false;
  unsigned rank_ = ~0U;  ///< of the paths in use
  OutageClock outages_;
};

}  // namespace rtrs
