// SPDX-License-Identifier: BSD-3-Clause
// A second account of what the servers of a mirror have recorded, and of what their clients know.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "bridge/client/mirror/group_host.hpp"
#include "bridge/protocol/mirror.hpp"

namespace sim {

namespace mirror = rnbd::mirror;
using Moment = std::uint64_t;
using Moments = std::map<unsigned, Moment>;        ///< for each server
inline constexpr unsigned kNobody = ~unsigned{0};  ///< no server

/// The part of an account that goes with a message, either way.
struct MirrorTidings {
  mirror::View view{};             ///< the newest one
  mirror::View confirmed{};        ///< the newest one that is known to be in force
  std::vector<unsigned> places{};  ///< the server of each member, by that view
  Moments known{};  ///< a state of a server from before that moment is known to be old
};

/// The account of a server. It is set back with its disk.
struct MirrorEntry : MirrorTidings {
  Moment aged = 0;          ///< nothing tells its state now from a later one of before that moment
  std::uint64_t epoch = 0;  ///< volatile epoch at its newest view that it was in
};

/// Takes down which views servers have recorded, which ones came into force, and who was told of
/// it. From that it follows which states of a server the design promises to know for old ones. The
/// records of the code under test are never asked about that, and messages for that purpose alone
/// are not needed: a member counts as told when nothing is on its way to it any more.
class MirrorLedger {
 public:
  /// The servers of members that are in step, and in their second view, as the set of it says. Each
  /// has all that there is.
  void begin(mirror::MemberSet in_step);
  /// Another server had the member's place in the first view.
  void begin_displaced(unsigned place, unsigned member);
  void set_vote(unsigned member) { vote_ = member; }
  MirrorEntry& entry(unsigned place);
  const MirrorEntry& entry(unsigned place) const;

  // Events, in the order in which they happen. `names`: the server of each member, as the client
  // has it.
  /// Returns what the order tells.
  MirrorTidings sent(unsigned client, const mirror::Command& command,
                     const std::vector<unsigned>& names);
  /// Without an error. Returns what the answer tells.
  MirrorTidings carried_out(unsigned place, const mirror::Command& command,
                            const MirrorTidings& told, std::uint64_t epoch);
  /// The client takes the answer of a server in, which has no error. With the last answer to a view
  /// that is in force, and its members are to be told so. `link`: the session of the client with a
  /// member, 0: it does not stand.
  void answered(unsigned client, unsigned place, const mirror::Command& command,
                const MirrorTidings& told, const std::vector<unsigned>& names,
                const std::function<unsigned(unsigned member)>& link);

  /// A member that is to be told.
  struct Debt {
    unsigned client = 0;
    unsigned member = 0;
    unsigned place = 0;
    unsigned link = 0;
    MirrorTidings told{};
  };
  enum class Way : std::uint8_t { lost, under_way, arrived };
  /// `way`: what has become of the messages that were sent over that session.
  void settle(const std::function<Way(const Debt& debt)>& way);
  /// Nothing that is on its way to this server arrives.
  void lost(unsigned place);
  /// Nothing that this client has not sent yet arrives.
  void lost_by(unsigned client);
  void all_lost() { debts_.clear(); }
  /// Its disk is another one now, of which nothing is known.
  void forget(unsigned place) { entry(place) = {}; }

  // Questions.
  /// The newest view of all.
  const mirror::View& newest() const;
  /// The server of a member by the newest view that had it; kNobody.
  unsigned holder(unsigned member) const;
  /// All of the newest view have recorded it.
  bool settled() const;
  /// By the newest view in force of which one of the others knows.
  mirror::View confirmed_without(unsigned place) const;

 private:
  struct Client {
    std::uint64_t term = 0;  ///< of its claims
    bool live = false;       ///< a view of its own is in force
    MirrorTidings knows{};
    mirror::View proposed{};
    mirror::MemberSet acked = 0;
    Moments recorded{};  ///< when members have recorded the proposed view
    Moments flushed{};   ///< when members have flushed for the activity logs
  };
  Client& client(unsigned number);
  void propose(Client& client, const mirror::View& view, const std::vector<unsigned>& names);
  void claimed(Client& client, const mirror::Command& command, unsigned place,
               const MirrorTidings& told) const;
  void come_into_force(unsigned number, const std::vector<unsigned>& names,
                       const std::function<unsigned(unsigned member)>& link);

  void tell_vote(unsigned number, const std::vector<unsigned>& names,
                 const std::function<unsigned(unsigned member)>& link);

  Moment now_ = 1;
  std::optional<unsigned> vote_;
  std::vector<MirrorEntry> entries_;  ///< by server
  std::vector<Client> clients_;
  std::vector<Debt> debts_;
};

}  // namespace sim
