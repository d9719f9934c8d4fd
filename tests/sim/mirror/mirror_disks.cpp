// SPDX-License-Identifier: BSD-3-Clause
// Which disks have the places of a mirror's members: others come, machines are set back, clients
// have the wrong names, and an operator decides for one of them.
#include <algorithm>
#include <utility>

#include "tests/sim/mirror/mirror_world.hpp"

namespace sim {

/// The server that has the place of this member by the newest view, or was put there last.
unsigned MirrorWorld::holder(unsigned member) const {
  const unsigned holder = ledger_.holder(member);
  const bool lives = holder != kNobody && ledger_.entry(holder).view.id != mirror::ViewId{};
  return lives ? holder : named_[member];
}

std::vector<unsigned> MirrorWorld::holders() const {
  std::vector<unsigned> names;
  for (unsigned i = 0; i < voters(); ++i) names.push_back(holder(i));
  return names;
}

/// The present ones, or those of a client that was told of earlier ones, or of wrong ones. One at
/// least of the others knows the group: blank servers alone would begin a new one.
std::vector<unsigned> MirrorWorld::some_names() {
  std::vector<unsigned> names = holders();
  if (faults_ && added_ && more_.chance(mood_.fewer)) names.pop_back();
  if (!faults_ || !rng.chance(mood_.names)) return names;
  const unsigned member = any_member();
  if (member >= names.size()) return names;
  const mirror::MemberSet others_in_step = disks_of(mirror::without(newest().set, member));
  if (others_in_step == 0 || newest().id == mirror::ViewId{}) return names;
  std::vector<unsigned> others;
  for (unsigned i = 0; i < nodes_.size(); ++i)
    if (nodes_[i].number == member && i != names[member]) others.push_back(i);
  if (others.empty() || (others.size() < 3 && rng.chance(200))) {
    others = {another_node(member)};
    nodes_.back().elsewhere = rng.chance(300);
  }
  names[member] = others[rng.below(others.size())];
  return names;
}

/// Another disk gets a member's place, a machine is set back to an earlier state, or an operator
/// decides for one member while others are used.
void MirrorWorld::change_identity() {
  const unsigned member = any_member();
  const std::uint64_t chance = rng.below(100);
  if (chance < 40) {
    save(member);
  } else if (chance < 75) {
    if (may_set_back(member)) set_back(member);
  } else if (chance < 90) {
    add_another(member);
  } else if (member != vote()) {
    force_beside_others(member);
  }
}

void MirrorWorld::save(unsigned member) {
  MirrorNode& node = held(member);
  node.saved = {node.member->record(), node.cached, node.durable, ledger_.entry(holder(member))};
  say("node " + std::to_string(holder(member)) + " is saved");
}

/// The next client names one disk more, which no record knows. Those of before may go on.
void MirrorWorld::add_copy() {
  added_ = true;
  const unsigned member = options.members++;
  named_.push_back(another_node(member));
  say("the mirror gets node " + std::to_string(named_.back()) + " as member " +
      std::to_string(member));
  new_client(holders());
}

/// Its former disk lives on, and clients may still look for it.
bool MirrorWorld::add_another(unsigned member) {
  MirrorClient& client = *clients_.back();
  if (nodes_.size() > 3 * options.members) return false;
  if (client.dead || !client.group.live() || member >= client.names.size()) return false;
  if (!client.group.discard(member)) return false;
  client.linked[member] = 0;
  client.broken[member] = 0;
  client.names[member] = named_[member] = another_node(member);
  say("node " + std::to_string(named_[member]) + " gets the place of member " +
      std::to_string(member));
  return true;
}

/// It is not the only good one, and no client can attach without meeting one that knows that it was
/// newer.
bool MirrorWorld::may_set_back(unsigned member) const {
  const unsigned place = holder(member);
  const std::optional<MirrorNode::Saved>& saved = nodes_[place].saved;
  const mirror::View newest = this->newest();
  if (!saved) return false;
  if (newest.id == mirror::ViewId{} || !is_settled() || !is_spared(member)) return false;
  if (mirror::has(newest.set, member) && member != vote() && !may_lose_power()) return false;
  mirror::MemberSet knowing = 0;
  for (unsigned i = 0; i < voters(); ++i) {
    if (i == member) continue;
    const Moments& known = ledger_.entry(holder(i)).known;
    const auto moment = known.find(place);
    const bool knows_age = moment != known.end() && moment->second > saved->entry.aged;
    const bool goes_on_without =
        mirror::has(mirror::without(newest.set, member), i) && !mirror::has(newest.set, member);
    if (knows_age || goes_on_without) knowing = mirror::with(knowing, i);
  }
  const auto suffices = [&](mirror::MemberSet set) {
    const auto others = static_cast<mirror::MemberSet>(set & ~knowing);
    return !are_enough(knowing, set) && are_enough(others, set);
  };
  for (unsigned i = 0; i < voters(); ++i) {
    const mirror::View& view = (i == member ? saved->entry : ledger_.entry(holder(i))).view;
    if (!mirror::has(knowing, i) && suffices(view.set)) return false;
  }
  return true;
}

/// Its clients die, or they lose it at once, or later. Until then they may record a view in which
/// it decides, so that the others are in doubt without it.
void MirrorWorld::set_back(unsigned member) {
  const bool is_in_view = mirror::has(newest().set, member);
  const unsigned place = holder(member);
  stop(place, false);
  if (is_in_view && rng.chance(700))
    lose_clients_of(member);
  else
    in_doubt_ = true;
  say("it is set back to an earlier state");
  MirrorNode& node = nodes_[place];
  const bool boots = rng.chance(500);
  if (boots) ++node.epoch;
  node.durable = boots ? node.saved->durable : node.saved->cached;
  node.cached = node.durable;
  // Before its first view it had no record.
  const bool had_record = node.saved->entry.view.id != mirror::ViewId{};
  node.member = std::make_unique<mirror::Member>(
      had_record ? node.saved->record : first_record(member), node.epoch);
  ledger_.entry(place) = node.saved->entry;
}

/// They die, or they lose the member.
void MirrorWorld::lose_clients_of(unsigned member) {
  const bool die = rng.chance(500);
  for (const auto& client : clients_) {
    if (die) client->dead = true;
    const bool knows = member < client->names.size();
    if (!client->dead && !client->asleep && knows && client->broken[member] != 0)
      end_session(*client, member);
  }
}

/// After one decision an operator makes another one only for a server that knows of the first.
bool MirrorWorld::may_force(unsigned place) const {
  const mirror::ViewId known = ledger_.entry(place).view.id;
  return forced_ == 0 || (forced_ == history_ && mirror::history_of(known.term) == history_);
}

/// Clients that live are cut off from the member, and the one that an operator commands from all
/// others, or from none. It may have the names of before.
void MirrorWorld::force_beside_others(unsigned member) {
  constexpr unsigned kPatience = 400;
  const std::vector<unsigned> names = some_names();
  if (member >= names.size()) return;
  const unsigned place = names[member];
  if (newest().id == mirror::ViewId{} || nodes_[place].elsewhere || !may_force(place)) return;
  nodes_[place].up = true;
  for (const auto& client : clients_)
    if (member < client->names.size()) client->cut[member] = 1;
  new_client(names);
  MirrorClient& client = *clients_.back();
  const bool alone = rng.chance(700);
  for (unsigned i = 0; i < client.cut.size(); ++i) client.cut[i] = alone && i != member ? 1 : 0;
  for (unsigned i = 0; i < kPatience && !client.dead && !client.group.live(); ++i) {
    step(false);
    if (&client == clients_.back().get() && client.force(member)) return;
  }
}

/// Members know of a decision whose member had no time to record it, and one of them is another
/// disk now. Or one that was set back could have gone on alone. Only an operator knows that nothing
/// else was decided. Only the vote may have recorded the newest view.
void MirrorWorld::force_again() {
  MirrorClient& client = *clients_.back();
  if (client.dead || client.group.live() || client.names != holders()) return;
  const auto view_of = [this](unsigned i) { return ledger_.entry(holder(i)).view.id; };
  mirror::ViewId last{};
  for (unsigned i = 0; i < options.members; ++i)
    if (mirror::has(newest().set, i)) last = std::max(last, view_of(i));
  for (unsigned i = 0; i < options.members; ++i)
    if (mirror::has(newest().set, i) && view_of(i) == last && client.force(i)) return;
}

/// An operator takes the record away from a server that shall have a place which another disk has
/// had since, if that is lost.
void MirrorWorld::free_strangers() {
  for (unsigned i = 0; i < options.members; ++i) {
    const unsigned place = holder(i);
    const unsigned rightful = ledger_.holder(i);
    if (nodes_[place].elsewhere || rightful == kNobody || rightful == place) continue;
    if (ledger_.entry(place).view.id != mirror::ViewId{}) free_record(place);
  }
}

/// The server that an operator has forced may know of an earlier disk in that place only.
void MirrorWorld::free_displaced() {
  const MirrorClient& client = *clients_.back();
  if (client.dead || !client.group.live() || client.names != holders()) return;
  for (unsigned i = 0; i < options.members; ++i)
    if (client.linked[i] != 0 && client.group.displaced(i)) free_record(client.names[i]);
}

void MirrorWorld::free_record(unsigned place) {
  stop(place, true);
  MirrorNode& node = nodes_[place];
  node.saved.reset();
  ledger_.forget(place);
  node.member = std::make_unique<mirror::Member>(first_record(node.number), node.epoch);
  node.up = true;
}

/// A member is set back to before other views, or before the end of quiet regions, while it is away
/// or while no client is there.
void MirrorWorld::go_back() {
  if (!make_whole()) return;
  const auto group = [this]() -> const mirror::Group& { return clients_.back()->group; };
  const unsigned member = any_member();
  save(member);
  if (rng.chance(500) && !make_whole()) return;
  const unsigned cool = mood_.cool;
  if (rng.chance(500)) mood_.cool = 0;  // which tells the same as a view in force
  for (auto i = rng.below(kSceneSteps / 10); i > 0; --i) step(false);
  mood_.cool = cool;
  if (rng.chance(500)) {
    quiet_ = true;
    until([&] { return group().cold(); });
    quiet_ = false;
  }
  if (rng.chance(500)) {
    leave_out(member);
    until([&] { return !mirror::has(group().in_step(), member); });
    for (auto i = rng.below(kSceneSteps / 10); i > 0; --i) step(false);
  }
  until([this] { return is_settled(); });
  if (may_set_back(member)) set_back(member);
  for (MirrorNode& node : nodes_) node.up = true;
  for (auto i = rng.below(kSceneSteps / 5); i > 0; --i) step(false);
}

/// A member is set back to the midst of its resync when it has got everything. Its client does not
/// know that, and dies when others have recorded the view with it.
void MirrorWorld::go_back_while_joining() {
  if (!make_whole()) return;
  const auto group = [this]() -> const mirror::Group& { return clients_.back()->group; };
  const unsigned member = any_disk();
  leave_out(member);
  if (!until([&] { return !mirror::has(group().in_step(), member); })) return;
  for (auto i = rng.below(kSceneSteps / 20); i > 0; --i) step(false);
  held(member).up = true;
  const auto left = [&] { return group().progress(member).left; };
  if (!until([&] { return left() != 0; })) return;
  for (auto i = rng.below(10); i > 0; --i) step(false);
  save(member);
  until([&] { return left() == 0; });
  for (auto i = rng.below(40); i > 0; --i) step(false);
  if (!mirror::has(group().in_step(), member) && may_set_back(member)) set_back(member);
  until([&] { return mirror::has(newest().set, member); });
  clients_.back()->dead = true;
  for (MirrorNode& node : nodes_) node.up = true;
  for (auto i = rng.below(kSceneSteps / 5); i > 0; --i) step(false);
}

/// Another disk has got a member's place and is in step, or some have recorded that it is. The next
/// client is told the names of before.
void MirrorWorld::begin_again() {
  if (!make_whole()) return;
  const std::vector<unsigned> names = holders();
  const unsigned member = any_member();
  if (!add_another(member)) return;
  nodes_.back().overwrite = true;
  const mirror::Group& group = clients_.back()->group;
  if (rng.chance(300)) {
    const auto known = [&] { return holder(member) == named_[member]; };
    if (!until([&] { return known() && mirror::has(newest().set, member); })) return;
    if (!mirror::has(group.in_step(), member)) stop(named_[member], false);
  } else if (!until([&] { return group.whole(); })) {
    return;
  }
  for (auto i = rng.below(kSceneSteps / 10); i > 0; --i) step(false);
  for (const auto& client : clients_) client->dead = true;
  new_client(names);
  for (auto i = rng.below(kSceneSteps / 5); i > 0; --i) step(false);
}

}  // namespace sim
