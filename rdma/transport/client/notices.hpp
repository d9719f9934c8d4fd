// SPDX-License-Identifier: BSD-3-Clause
// The sentences about a client's session: for its log, and for callers.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "rdma/client.hpp"
#include "rdma/core/client/notice.hpp"

namespace rtrs {

/// Writes a session's log. It leaves out what repeats itself, and says that trouble is over as loud
/// as that it began.
///
/// Threads: the client's background thread.
class ClientNotices {
 public:
  /// `options` has the log, the words and the addresses of the paths, and must outlive this object.
  explicit ClientNotices(const ClientOptions& options) : options_{options} {}

  void report(const Notice& notice, Instant now);
  /// A path with this number is new.
  void forget(unsigned path) { unreachable_reported_[path] = false; }

  /// For callers, with the errno of the cause or the usual one of its kind.
  Failure failure_of(const Cause& cause) const;
  /// The session did not come up in time. `absent`, `foreign`: of the last attempts of these kinds.
  struct Lateness {
    Cause absent;
    Cause foreign;
    PathMask connecting = 0;
    PathMask waiting = 0;
  };
  Failure too_late(const Lateness& lateness) const;
  std::string timed_out(unsigned path) const;
  /// The trouble of a path that is not tried before another one has made the session.
  std::string waits_for_others() const;
  /// The trouble of a path that leads to another server (ClientSession::is_elsewhere()).
  std::string led_elsewhere() const;

  std::string name_of_path(unsigned path) const;
  std::string name_of_session() const;
  /// A line that is no notice: the transport's.
  void log(LogLevel level, const std::string& text) const;

 private:
  void trace_state(const Notice& notice) const;
  bool is_repeated(const Notice& notice, Instant now);
  bool has_one_path() const { return options_.paths.size() == 1; }
  std::string name_among_paths(unsigned path) const;
  std::string address_of(unsigned path) const;
  std::string names_of(PathMask paths) const;
  std::string waiting_paths(PathMask paths) const;

  const ClientOptions& options_;
  bool troubled_ = false;  ///< readers were told of trouble
  std::array<bool, kMaxPaths> unreachable_reported_{};
  std::optional<Instant> overdue_reported_;  ///< the last time
};

}  // namespace rtrs
