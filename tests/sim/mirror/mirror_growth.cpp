// SPDX-License-Identifier: BSD-3-Clause
// The disks of a mirror's members become larger, and then the mirror does.
#include <algorithm>

#include "tests/sim/mirror/mirror_world.hpp"

namespace sim {

/// Each disk has something else in its new room. A vote has none.
void MirrorWorld::enlarge(MirrorNode& node, std::uint64_t room) {
  if (node.number == vote()) return;
  for (; node.room < room; ++node.room) {
    const std::uint64_t found = growth_.chance(500) ? kNothing : next_value++;
    node.cached[node.room] = node.durable[node.room] = found;
  }
}

/// As its server says before the claim: of a member it is the size by its record. A client begins
/// with the smallest disk.
std::uint64_t MirrorWorld::told_size(const std::vector<unsigned>& names) const {
  std::uint64_t least = ~std::uint64_t{0};
  for (const unsigned name : names) {
    const MirrorNode& node = nodes_[name];
    if (node.number == vote()) continue;
    const std::uint64_t room = node.room * kSectorBytes;
    least = std::min(least, node.member->is_kept() ? node.member->record().size : room);
  }
  return least;
}

/// Nobody waits for members that an operator has discarded. In the end there is silence.
void MirrorWorld::look_at_rooms(MirrorClient& client) {
  const bool is_ready = mirror::size(client.group.copies()) == options.members;
  const bool in_vain = !faults_ && (!is_ready || client.sectors == kMostSectors);
  if (client.dead || client.asleep || in_vain || !asks_) return;
  const bool spares = faults_ && growth_.chance(300);
  client.group.look_at_rooms(spares ? static_cast<mirror::MemberSet>(~client.group.in_step())
                                    : mirror::MemberSet{0});
}

/// Requests have waited for too long for those that are under way.
void MirrorWorld::put_off_growth() {
  MirrorClient& client = *clients_.back();
  if (client.dead || client.asleep || !faults_ || !client.group.prepares_growth()) return;
  if (refusals_.chance(mood_.put_off)) client.group.put_off_growth();
}

/// A client shows its users a disk of this size. All members in step have recorded that. One that
/// has been stopped since may have been set back.
void MirrorWorld::sized(const MirrorClient& client) {
  if (checker.newest() != client.number) {
    if (client.sectors > checker.sectors())
      throw MirrorViolation("a superseded client shows a larger disk");
    return;
  }
  std::vector<std::set<std::uint64_t>> found(kMostSectors);
  for (unsigned i = 0; i < options.members; ++i) {
    if (!mirror::has(client.group.in_step(), i)) continue;
    const MirrorNode& node = nodes_[client.names[i]];
    if (client.broken[i] == 0 && node.member->record().size < client.sectors * kSectorBytes)
      throw MirrorViolation("users see a size that a member in step has not recorded");
    for (std::uint64_t sector = 0; sector < kMostSectors; ++sector)
      found[sector].insert({node.cached[sector], node.durable[sector]});
  }
  say("users see " + std::to_string(client.sectors) + " sectors");
  checker.sized(client.sectors, found);
}

/// All disks become larger, and members or clients die while the mirror grows.
void MirrorWorld::grow() {
  if (!make_whole()) return;
  if (options.vote && growth_.chance(500)) return grow_beside_vote();
  const std::uint64_t room = growth_.between(kSectors + 1, kMostSectors);
  const auto spared = static_cast<unsigned>(growth_.below(2 * options.members));
  for (unsigned i = 0; i < options.members; ++i)
    if (i != spared) enlarge(held(i), growth_.chance(500) ? room : kMostSectors);
  const auto grows = [this] {
    return std::ranges::any_of(
        net_, [](const Message& message) { return message.command.order == mirror::Order::grow; });
  };
  until(grows);
  if (growth_.chance(500)) return give_up_growth();
  for (auto i = growth_.below(growth_.chance(500) ? 20 : 200); i > 0; --i) step(false);
  const auto member = static_cast<unsigned>(growth_.below(options.members));
  if (growth_.chance(500)) stop(holder(member), growth_.chance(300) && may_lose_power());
  if (growth_.chance(600)) clients_.back()->dead = true;
  for (auto i = growth_.below(kSceneSteps / 5); i > 0; --i) step(false);
  for (MirrorNode& node : nodes_) node.up = true;
  for (auto i = growth_.below(kSceneSteps / 5); i > 0; --i) step(false);
}

/// A member is lost when all others have recorded the new size. Their client goes on, and so does
/// the next one, with the others only.
void MirrorWorld::give_up_growth() {
  MirrorClient& client = *clients_.back();
  const auto member = static_cast<unsigned>(growth_.below(options.members));
  const mirror::MemberSet others = mirror::without(client.group.in_step(), member);
  client.cut[member] = 1;
  const auto has_recorded = [&](unsigned i) {
    return held(i).member->record().size > client.sectors * kSectorBytes;
  };
  until([&] {
    bool all = true;
    for (unsigned i = 0; i < options.members; ++i)
      all = all && (!mirror::has(others, i) || has_recorded(i));
    return all || client.dead;
  });
  client.cut[member] = 0;
  asks_ = false;
  stop(holder(member), false);
  until([&] { return client.dead || !mirror::has(client.group.in_step(), member); });
  for (auto i = growth_.below(kSceneSteps / 4); i > 0; --i) step(false);
  clients_.back()->dead = true;
  for (auto i = growth_.below(kSceneSteps / 4); i > 0; --i) step(false);
  for (MirrorNode& node : nodes_) node.up = true;
  asks_ = true;
}

/// The vote comes back, and is lost while the disks grow without it. Nobody looks for more room,
/// and the next client takes what the records have.
void MirrorWorld::grow_beside_vote() {
  MirrorClient& client = *clients_.back();
  stop(holder(vote()), false);
  until([&] { return client.dead || !mirror::has(client.group.in_step(), vote()); });
  for (MirrorNode& node : nodes_) enlarge(node, kMostSectors);
  asks_ = false;
  held(vote()).up = true;
  until([&] { return client.dead || client.linked[vote()] != 0; });
  if (!client.dead) client.group.look_at_rooms(0);
  const auto grows = [this] {
    return std::ranges::any_of(
        net_, [](const Message& message) { return message.command.order == mirror::Order::grow; });
  };
  until([&] { return client.dead || grows(); });
  stop(holder(vote()), false);
  for (auto i = growth_.below(kSceneSteps / 4); i > 0; --i) step(false);
  clients_.back()->dead = true;
  for (auto i = growth_.below(kSceneSteps / 4); i > 0; --i) step(false);
  held(vote()).up = true;
  asks_ = true;
}

}  // namespace sim
