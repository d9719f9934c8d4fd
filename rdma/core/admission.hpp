// Who may connect: the checks a server makes before it spends anything on a client.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "rdma/wire/handshake.hpp"

namespace rtrs {

struct AdmissionLimits {
  unsigned max_sessions = 256;
  unsigned max_connections_per_path = 128;
  std::uint64_t session_memory = 0;  ///< bytes of chunks that one session takes
  std::uint64_t memory_limit = 0;    ///< bytes of chunks over all sessions
};

/// The sessions of a server and what they hold, as far as admission needs to know.
///
/// Memory is only counted here when the first connection is accepted; it is allocated when the
/// handshake is through.
///
/// Threads: pure; the driver guards it.
/// Source:  docs/protocol.md, admission.
class Admission {
 public:
  using SessionId = std::uint64_t;  ///< never used twice

  struct Decision {
    int error = 0;         ///< errno of the reject record, 0 = accept
    const char* why = "";  ///< for the log
    SessionId session = 0;
    bool created = false;
  };

  explicit Admission(AdmissionLimits limits) : limits_{limits} {}

  /// Judges one connect request and, when it is accepted, counts the connection in.
  ///
  /// Errors: ENXIO (unknown session and not its first connection), ENOMEM (too many sessions or too
  /// much memory: try
  ///         again later), ECONNRESET (contradicts what is known of the path), EEXIST (a second
  ///         path).
  Decision admit(const wire::ConnectParameters& parameters);

  /// All connections of the session's path have been accepted.
  bool complete(SessionId session) const;
  /// The session announces its name. False: another session has it.
  bool claim_name(SessionId session, std::string_view name);
  /// The path has begun to close: further connections of it are refused until remove().
  void close(SessionId session);
  /// The session and its memory are gone.
  void remove(SessionId session);

  std::size_t sessions() const { return sessions_.size(); }
  std::uint64_t memory() const { return sessions_.size() * limits_.session_memory; }

 private:
  struct Entry {
    wire::Uuid session_uuid{};
    wire::Uuid path_uuid{};
    std::uint16_t cid_count = 0;
    std::uint16_t accepted = 0;
    std::string connected;  ///< one char per cid: '1' = accepted
    std::string name;
    bool closing = false;
  };

  Decision admit_new(const wire::ConnectParameters& parameters);

  AdmissionLimits limits_;
  SessionId next_ = 1;
  std::map<SessionId, Entry> sessions_;
};

}  // namespace rtrs
