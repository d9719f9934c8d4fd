// SPDX-License-Identifier: BSD-3-Clause
// A second account of the sessions and the memory that a server's admission counts.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "rdma/core/admission.hpp"

namespace sim {

/// Written when a handshake is finished and when something ends, never for a hello alone: admission
/// must count the same at every moment.
class AdmissionLedger {
 public:
  using SessionId = rtrs::Admission::SessionId;
  using PathId = rtrs::Admission::PathId;

  /// `memory`: bytes, for the path's chunks.
  void admit(SessionId session, PathId path, std::uint64_t memory) {
    sessions_.insert(session);
    paths_[path] = {session, memory};
  }
  /// The path holds only so much any more.
  void shrink(PathId path, std::uint64_t memory) {
    if (const auto found = paths_.find(path); found != paths_.end())
      found->second.memory = found->second.kept = memory;
  }
  /// The path closes, and its memory is another path's.
  void spare(PathId path) {
    if (const auto found = paths_.find(path); found != paths_.end())
      found->second.kept = std::exchange(found->second.memory, 0);
  }
  void remove_path(PathId path) { paths_.erase(path); }
  void remove(SessionId session) {
    sessions_.erase(session);
    std::erase_if(paths_, [&](const auto& entry) { return entry.second.session == session; });
  }

  std::size_t sessions() const { return sessions_.size(); }
  std::uint64_t memory() const {
    std::uint64_t sum = 0;
    for (const auto& [id, path] : paths_) sum += path.memory;
    return sum;
  }
  /// Bytes in which requests of closed paths still execute.
  std::uint64_t kept() const {
    std::uint64_t sum = 0;
    for (const auto& [id, path] : paths_) sum += path.kept;
    return sum;
  }

 private:
  struct Path {
    SessionId session = 0;
    std::uint64_t memory = 0;
    std::uint64_t kept = 0;
  };
  std::set<SessionId> sessions_;
  std::map<PathId, Path> paths_;
};

/// A second account of the paths that have not finished their handshake, and of their hosts.
class DoorLedger {
 public:
  using PathId = rtrs::Admission::PathId;

  void enter(PathId path, std::string host) { waiting_[path] = std::move(host); }
  /// It is in, or gone.
  void leave(PathId path) {
    waiting_.erase(path);
    turned_away_.erase(path);
  }
  /// It makes room, and its session hears of that later.
  void turn_away(PathId path) {
    leave(path);
    turned_away_.insert(path);
  }
  bool is_turned_away(PathId path) const { return turned_away_.contains(path); }
  /// How many more wait of some other host than of the path's own.
  std::size_t missing_to_most(PathId path) const {
    std::map<std::string, std::size_t> counts;
    for (const auto& [id, host] : waiting_) ++counts[host];
    const auto found = waiting_.find(path);
    const std::size_t own = found == waiting_.end() ? 0 : counts[found->second];
    std::size_t most = 0;
    for (const auto& [host, count] : counts) most = std::max(most, count);
    return most - own;
  }

 private:
  std::map<PathId, std::string> waiting_;
  std::set<PathId> turned_away_;
};

}  // namespace sim
