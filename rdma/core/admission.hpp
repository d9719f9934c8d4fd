// Who may connect: the checks a server makes before it spends anything on a client.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/wire/handshake.hpp"

namespace rtrs {

struct AdmissionLimits {
  unsigned max_sessions = 256;
  unsigned max_paths_per_session = 8;
  unsigned max_connections_per_path = 1024;
  std::uint64_t path_memory = 0;   ///< bytes of chunks that one path takes
  std::uint64_t memory_limit = 0;  ///< bytes of chunks over all paths
  std::uint32_t features = 0;      ///< that the server offers
};

/// The sessions of a server, their paths, and what they hold, as far as admission needs to know.
///
/// Memory is only counted here when the first connection is accepted; it is allocated when the
/// handshake is through.
///
/// Threads: pure; the driver guards it.
/// Source:  docs/protocol.md, admission.
class Admission {
 public:
  using SessionId = std::uint64_t;  ///< never used twice
  using PathId = std::uint64_t;     ///< likewise; 0 is none. A path that comes back is another one

  struct Decision {
    int error = 0;         ///< errno of the reject record, 0 = accept
    const char* why = "";  ///< for the log
    SessionId session = 0;
    PathId path = 0;
    bool new_session = false;
    bool new_path = false;
    PathId replaces = 0;  ///< an older life of the path, which the driver must close
  };

  struct Claim {
    bool granted = false;
    SessionId ends = 0;  ///< the idle session that had the name; the driver must end it
  };

  explicit Admission(AdmissionLimits limits) : limits_{limits} {}

  /// Judges one connect request and, when it is accepted, counts the connection in.
  ///
  /// Errors: ENXIO (unknown session and not its first connection), ENOMEM (too many sessions or
  ///         paths, or too much memory: try again later), EINVAL (a uuid of zeros, too many
  ///         connections), ECONNRESET (contradicts what is known of the session or the path).
  Decision admit(const wire::ConnectParameters& parameters);

  /// The session announces its name. Not granted: another session has it.
  Claim claim_name(SessionId session, std::string_view name);
  /// The session lingers without paths, and nothing executes: it may lose its name.
  void set_idle(SessionId session);
  /// The path has begun to close: no further connections of it.
  void close_path(SessionId session, PathId path);
  /// The path's connections are closed, and of its memory it holds only what requests execute in.
  void shrink_path(SessionId session, PathId path, std::uint64_t memory);
  /// The path and its memory are gone.
  void remove_path(SessionId session, PathId path);
  /// The session is over: no path may join it any more.
  void close(SessionId session);
  /// The session and all of its paths are gone.
  void remove(SessionId session);

  std::size_t sessions() const { return sessions_.size(); }
  std::uint64_t memory() const;

 private:
  struct Path {
    PathId id = 0;
    wire::Uuid uuid{};
    std::uint16_t reconnect_count = 0;  ///< which attempt of the client this is
    std::vector<bool> connected;        ///< by cid
    bool closing = false;
    bool shrunk = false;       ///< storage keeps it, not the client
    std::uint64_t memory = 0;  ///< bytes that it holds
  };
  struct Session {
    wire::Uuid uuid{};
    bool extension = false;
    std::uint32_t features = 0;  ///< as asked for
    std::vector<Path> paths;     ///< oldest first; of one uuid only the newest may be open
    std::string name;
    bool completed = false;  ///< all connections of some path were accepted once
    bool idle = false;
    bool over = false;
  };

  bool lingers(const Session& session) const {
    return (session.features & limits_.features & wire::kFeatureExactlyOnce) != 0;
  }
  Decision admit_known(SessionId id, Session& session, const wire::ConnectParameters& parameters);
  Decision admit_new(const wire::ConnectParameters& parameters);
  Decision no_room(const wire::ConnectParameters& parameters) const;
  std::uint64_t kept_by_storage(const Session& session) const;
  Decision add_path(SessionId id, Session& session, const wire::ConnectParameters& parameters);
  static void connect(Session& session, Path& path, std::uint16_t cid);

  AdmissionLimits limits_;
  std::uint64_t next_ = 1;
  std::map<SessionId, Session> sessions_;
};

}  // namespace rtrs
