// SPDX-License-Identifier: BSD-3-Clause
// Admission: the checks a server makes before it spends anything on a client.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/core/memory_account.hpp"
#include "rdma/core/option_words.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs {

struct AdmissionLimits {
  unsigned max_sessions = 256;
  unsigned max_sessions_per_user = 0;  ///< 0 = as many as there may be
  unsigned max_paths_per_session = 8;
  unsigned max_connections_per_path = 1024;
  unsigned max_half_open = 64;     ///< paths that have not finished their handshake
  std::uint64_t path_memory = 0;   ///< bytes of chunks that one path takes
  std::uint64_t path_floor = 0;    ///< likewise, of one that borrows the rest; 0 = none does
  std::uint64_t memory_limit = 0;  ///< bytes of chunks over all paths
  std::uint64_t memory_limit_per_user = 0;  ///< likewise of one user's; 0 = memory_limit
  std::uint32_t features = 0;               ///< that the server offers
  const OptionWords* words = &kProgramWords;
  MemoryAccount* account = nullptr;  ///< is told of the memory; null: nobody borrows
};

/// The sessions of a server, their paths, and their memory, as far as admission needs to know.
///
/// In two steps. A connect request proves nothing: consider() judges it, and its path is half open
/// then. A half-open path counts no session and no memory, takes no name, and ends nothing that
/// another client has. When too many are half open, the oldest of the host that has most of them
/// makes room for a newcomer. admit() counts the path when its handshake is finished.
///
/// A session needs one path that carries requests, and more make it faster or safer. So where
/// memory is short, a path that its session can do without goes for one that another session needs.
///
/// A path over a transport that leaves unused memory to others counts with a floor, and borrows the
/// rest (MemoryAccount). A client without generations may need all of it to go on, so it does not.
///
/// Threads: pure; the driver guards it.
/// Source:  docs/protocol.md, admission.
class Admission {
 public:
  using SessionId = std::uint64_t;  ///< never used twice
  using PathId = std::uint64_t;     ///< likewise; 0 is none. A path that comes back is another one

  struct Place {
    SessionId session = 0;
    PathId path = 0;  ///< 0 = none
  };

  struct Considered {
    int error = 0;         ///< errno of the reject record, 0 = accept
    const char* why = "";  ///< for the log
    SessionId session = 0;
    PathId path = 0;
    bool new_session = false;
    bool new_path = false;
    std::uint64_t memory = 0;  ///< new_path: bytes that it will count; less than all: it borrows
    Place makes_room{};        ///< a half-open path that the driver must close
  };

  struct Admitted {
    const char* why_not = nullptr;  ///< null = the path is in
    int error = 0;                  ///< why_not: an errno that the client may be told; 0 = none
    PathId replaces = 0;          ///< an older generation of the path, which the driver must close
    SessionId ends = 0;           ///< an idle session that had the name; the driver must end it
    std::vector<Place> spares{};  ///< paths that can be done without; the driver must close them
    bool other_user = false;      ///< why_not: the session is that of another user
  };

  explicit Admission(AdmissionLimits limits) : limits_{limits} {}

  /// Judges one connect request. The connections of a half-open path belong together by both uuids
  /// and the number of the attempt. `user` is the one that the connection has proven, "" = no user,
  /// none = the proof comes before admit(). A session, half open or not, is that of one user only.
  /// `host` is where it comes from, as a Crowd knows it, and `entrance` the number of the listener.
  /// `can_borrow`: its transport leaves memory alone that no request uses.
  ///
  /// A memory path joins a session that has an open path for requests, and takes no memory.
  ///
  /// Errors:
  /// - ENXIO: an unknown session and not its first connection, or a memory path without others.
  /// - ENOMEM: too many sessions or paths, or too much memory, in all or of the user. Try later.
  /// - EINVAL: a uuid of zeros, or too many connections.
  /// - EACCES: another user's session.
  /// - ECONNRESET: it contradicts the known state of the session or the path.
  Considered consider(const wire::ConnectParameters& parameters,
                      std::optional<std::string_view> user = "", std::string_view host = "",
                      unsigned entrance = 0, bool can_borrow = false);
  /// Clients that understand it send nothing over paths of an inaccessible entrance.
  void set_access(unsigned entrance, wire::PathAccess access) { access_[entrance] = access; }
  /// Nothing came over the path for an interval of heartbeats; or something came again.
  void set_silent(SessionId session, PathId path, bool silent);
  /// Takes back what consider() has counted for connection `cid`: the driver could not let it in.
  void withdraw(const Considered& considered, std::uint16_t cid);
  /// All connections of a path are there, and the client has sent the session's name over it.
  /// Counts the path, unless there is no room now, or another session has the name. `user` is the
  /// one that all connections have proven since consider(), if they had to; none: as they came.
  Admitted admit(SessionId session, PathId path, std::string_view name,
                 std::optional<std::string_view> user = std::nullopt);
  /// A connection of the path `own` needs room: the oldest half-open path of the host that has most
  /// of them, which the driver must close. None, if that is its own.
  Place turn_away_oldest(const wire::Uuid& own = {});

  /// The session lingers without paths, and nothing executes: it may lose its name.
  void set_idle(SessionId session);
  /// The path has begun to close: no further connections of it.
  void close_path(SessionId session, PathId path);
  /// The path's connections are closed; only chunks in which requests execute still use its memory.
  void shrink_path(SessionId session, PathId path, std::uint64_t memory);
  /// The path and its memory are gone.
  void remove_path(SessionId session, PathId path);
  /// The session is over: no path may join it any more.
  void close(SessionId session);
  /// The session and all of its paths are gone.
  void remove(SessionId session);

  /// The number of sessions. One that has half-open paths only does not count.
  std::size_t sessions() const;
  /// Nothing is known of anybody, half-open paths included.
  bool empty() const { return sessions_.empty(); }
  std::size_t half_open() const;
  std::uint64_t memory() const;

 private:
  struct Path {
    PathId id = 0;
    wire::Uuid uuid{};
    std::string host = {};  ///< that its connection 0 came from
    unsigned entrance = 0;
    std::uint16_t reconnect_count = 0;  ///< which attempt of the client this is
    std::vector<bool> connected;        ///< by cid
    wire::PathKind kind = wire::PathKind::requests;
    bool proves = false;  ///< its connections came without a proven user
    bool half_open = true;
    bool closing = false;
    bool shrunk = false;  ///< storage keeps it, not the client
    bool silent = false;
    bool spared = false;  ///< the driver is about to close it: its memory is another path's
    bool can_borrow = false;
    std::uint64_t memory = 0;  ///< bytes that it holds

    std::uint64_t counted() const { return spared ? 0 : memory; }
    bool is_open() const { return !half_open && !closing; }
    bool has_chunks() const { return kind == wire::PathKind::requests; }
    bool is_waiting() const { return half_open && !closing; }
  };
  struct Session {
    wire::Uuid uuid{};
    bool extension = false;
    std::uint32_t features = 0;  ///< as asked for
    std::vector<Path> paths;     ///< oldest first; of one uuid only the newest may be open
    std::string name;
    std::optional<std::string> user;  ///< see consider()
    bool admitted = false;            ///< some path of it was
    bool idle = false;
    bool over = false;

    bool has_user() const { return user && !user->empty(); }
    bool agrees(const wire::ConnectParameters& parameters) const {
      return parameters.extension.present == extension && parameters.extension.features == features;
    }
  };

  std::uint64_t memory_of(const Session& session, const Path& path) const;
  struct Memory {
    const char* lack = nullptr;  ///< null: there is enough, if the spared paths go
    std::vector<Place> spares{};
  };
  const char* claim_memory(const Session& session, const Path& path,
                           const std::vector<Place>& spares);
  void tell_account() const;
  bool lingers(const Session& session) const {
    return (session.features & limits_.features & wire::kFeatureExactlyOnce) != 0;
  }
  std::map<SessionId, Session>::iterator find(const wire::ConnectParameters& parameters,
                                              std::optional<std::string_view> user);
  /// The use that a session has of a path.
  enum class Use : std::uint8_t { preferred, second, none };
  Considered consider_known(SessionId id, Session& session,
                            const wire::ConnectParameters& parameters, Path path);
  Considered consider_new(const wire::ConnectParameters& parameters,
                          std::optional<std::string_view> user, Path path);
  Considered connect(SessionId id, Session& session, const wire::ConnectParameters& parameters,
                     bool proves);
  Considered add_path(SessionId id, Session& session, const wire::ConnectParameters& parameters,
                      Path path);
  static const char* late(const Session& session, const wire::ConnectParameters& parameters);
  const char* overtaken(const Session& session, const Path& path) const;
  const char* no_room(const Session& session, const Path& path) const;
  const char* no_room_of_user(const Session& session, std::string_view name) const;
  const char* no_memory_path(const Session& session) const;
  Memory memory_for(const Session& session, const Path& path) const;
  Use use_of(const Session& session, const Path& path) const;
  bool is_needed(const Session& session, const Path& path) const;
  /// Bytes that a path needs, and that are not there.
  struct Lack {
    std::uint64_t in_all = 0;
    std::uint64_t of_user = 0;

    bool any() const { return in_all != 0 || of_user != 0; }
  };
  Lack lack_of(const Session& session, const Path& path) const;
  std::vector<Place> to_spare(const Session& taker, const Path& path, Lack lack) const;
  Place next_to_spare(const Session& taker, const Path& path, bool of_user,
                      const std::vector<Place>& spared) const;
  Path* find_path(Place place);
  static const Path* newest_generation(const Session& session, const wire::Uuid& path);
  std::uint64_t kept_by_storage(const Session& session) const;
  Admitted claim_name(SessionId session, std::string_view name);
  template <class Visit>
  void for_each_path(Visit visit) const;

  AdmissionLimits limits_;
  std::uint64_t next_ = 1;
  std::map<SessionId, Session> sessions_;
  std::map<unsigned, wire::PathAccess> access_;  ///< by entrance
};

}  // namespace rtrs
