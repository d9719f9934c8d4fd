// SPDX-License-Identifier: BSD-3-Clause
// Duties of the paths of a client's session: how long a request may wait, and over which of them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "rdma/core/path.hpp"
#include "tests/sim/knobs.hpp"
#include "tests/sim/world.hpp"

namespace sim {

/// Knows of the paths what can be seen from outside, and judges by that:
/// - nobody is told that there is no path before no_path_timeout is over, and then everybody is;
/// - a better path is used when it has settled, and not sooner if others do.
class PathWatch {
 public:
  PathWatch(World& world, const Knobs& knobs, const ClientKnobs& client, NodeId self,
            std::string who);

  // To be told before the code under test makes anything of it.
  void added(unsigned path, unsigned rank);
  void joined(unsigned path, unsigned access, bool accessible);
  void access_changed(unsigned path, unsigned access, bool accessible);
  void set_leaving(unsigned path, bool leaving);
  void set_distrusted(unsigned path, bool distrusted);
  /// A connection of it is silent, and requests have left it.
  void set_silent(unsigned path, std::size_t cid, bool silent);
  void lost(unsigned path);
  void removed(unsigned path) { paths_[path].exists = false; }
  /// On connection `cid`. `bound`: the request cannot take every path.
  void requested(unsigned path, std::size_t cid, bool bound);
  void answered(unsigned path);

  /// The session says that there has been no path for too long.
  void gave_up();
  /// The same of the path that changes wait for.
  void gave_up(unsigned path);
  /// Since when a path can be used for everything; none if it cannot.
  std::optional<Instant> usable_since(unsigned path) const {
    if (!paths_[path].usable()) return std::nullopt;
    return paths_[path].usable_since;
  }
  /// Somebody who has asked then is still waiting.
  void check_wait(Instant asked) const;
  /// Likewise, and no path lets it through since then.
  void check_blocked(Instant since, bool writes) const;

 private:
  struct Path {
    unsigned rank = 0;
    unsigned access = 0;
    bool exists = false;
    bool joined = false;
    bool accessible = false;
    bool leaving = false;
    bool distrusted = false;
    std::set<std::size_t> silent;  ///< connections
    Instant joined_at{};
    Instant since{};         ///< joined: so good, or better
    Instant usable_since{};  ///< usable()
    unsigned requests = 0;   ///< since it was joined
    unsigned answers = 0;
    Instant good_until{};  ///< when it was lost last, and had been of use
    bool may_carry() const { return joined && accessible; }
    bool usable() const { return may_carry() && !leaving; }
    unsigned order() const { return (distrusted ? 1024 : 0) + access * 64 + rank; }
  };
  bool any_joined() const;
  bool extension() const;
  Instant permits_free_since() const;
  bool of_use(const Path& path) const;
  void check_choice(unsigned chosen, std::size_t cid);
  Duration detection() const;
  bool has_no_limit() const {
    return !client_.survives || client_.no_path_timeout == Duration::zero();
  }

  World& world_;
  const Knobs& knobs_;
  const ClientKnobs& client_;
  NodeId self_;
  std::string who_;
  std::array<Path, rtrs::kMaxPaths> paths_;
  Instant good_until_{};   ///< a path that was of use could carry requests, at least until then
  Instant good_before_{};  ///< likewise, at most
  Instant answered_{};     ///< the last time
  Instant came_{};         ///< likewise: some path
  Instant lost_{};
  Instant reshuffled_{};  ///< other than by paths that came
};

}  // namespace sim
