// SPDX-License-Identifier: BSD-3-Clause
// A vote without a disk: what it promises, and what it must not do.
#include "tests/sim/mirror/mirror_world.hpp"

namespace sim {

void MirrorWorld::vote_scenes() {
  if (mood_.host) lose_host();
  if (mood_.both) lose_disk_and_vote();
  if (mood_.wiped) wipe_behind();
  if (mood_.only_vote) leave_only_vote();
  if (mood_.race) race_for_vote();
  if (mood_.races_to_attach) race_to_attach();
  if (mood_.void_view) leave_void_view();
  if (mood_.void_join) go_back_beside_void_view();
  if (mood_.misnamed) misname_last();
  if (mood_.back_in_view) go_back_within_view();
}

/// A client of another mirror with the same UUID, or of nobody, wants the vote. It knows none of
/// the disks.
void MirrorWorld::claim_by_others() {
  constexpr std::uint64_t kForced = std::uint64_t{1} << 32;
  const MirrorNode& node = held(vote());
  if (!node.up || !node.member->is_of({kForeign})) return;
  const std::uint64_t term = node.member->record().promised + rng.pick({1U, 3U});
  node.member->claim(rng.chance(500) ? term + kForced : term, kLoneSession);
  say("the vote is claimed by others");
}

/// An operator takes a record away that knows none of the disks, as all were replaced since.
void MirrorWorld::free_vote_of_others() {
  const unsigned place = holder(vote());
  std::vector<std::uint64_t> disks;
  for (unsigned i = 0; i < options.members; ++i) disks.push_back(held(i).member->record().disk);
  if (mirror::has(newest().set, vote()) || nodes_[place].member->is_of(disks)) return;
  free_record(place);
}

/// Its state directory is lost, and it votes for nothing from then on.
void MirrorWorld::wipe_vote() {
  const unsigned place = holder(vote());
  stop(place, true);
  say("the vote is wiped");
  // Together with a disk that was replaced before, it may have been needed.
  if (mirror::has(newest().set, vote())) in_doubt_ = true;
  ledger_.forget(place);
  MirrorNode& node = nodes_[place];
  node.saved.reset();
  node.member = std::make_unique<mirror::Member>(first_record(vote()), node.epoch);
}

/// The present client, or the next one, goes on without an operator. All have the right names.
void MirrorWorld::must_attach(const char* complaint) {
  constexpr unsigned kAttempts = 6;
  const auto goes_on = [&] { return !clients_.back()->dead && clients_.back()->group.live(); };
  if (clients_.back()->names != holders()) replace_clients();
  faults_ = false;
  unsigned left = kAttempts;
  while (left > 0 && !until(goes_on)) --left;
  faults_ = true;
  if (left == 0) throw MirrorViolation(complaint);
}

/// A disk and the client have one machine. That of the vote may have been started anew before.
void MirrorWorld::lose_host() {
  if (!make_whole()) return;
  go_on(kSceneSteps / 10);
  if (!clients_.back()->group.whole()) return;
  clients_.back()->dead = true;
  stop(holder(any_disk()), true);
  if (rng.chance(500)) {
    stop(holder(vote()), true);
    held(vote()).up = true;
  }
  replace_clients();
  must_attach("a client waits for a disk that was lost with the client before");
  go_on(kSceneSteps / 10);
  for (MirrorNode& node : nodes_) node.up = true;
  go_on(kSceneSteps / 10);
}

/// One of them is back later.
void MirrorWorld::lose_disk_and_vote() {
  if (!make_whole()) return;
  go_on(kSceneSteps / 10);
  if (!clients_.back()->group.whole()) return;
  const unsigned disk = any_disk();
  stop(holder(disk), false);
  stop(holder(vote()), false);
  const MirrorClient& client = *clients_.back();
  until([&] { return client.dead || !mirror::has(client.group.in_step(), vote()); });
  go_on(kSceneSteps / 20);
  held(rng.chance(500) ? disk : vote()).up = true;
  if (rng.chance(300)) clients_.back()->dead = true;
  must_attach("a client waits for a disk and the vote, and one of them is back");
  go_on(kSceneSteps / 10);
  for (MirrorNode& node : nodes_) node.up = true;
  go_on(kSceneSteps / 10);
}

/// One disk goes on alone, and is lost. The others and the blank vote know nothing of that.
void MirrorWorld::wipe_behind() {
  if (!make_whole()) return;
  const unsigned last = any_disk();
  for (unsigned i = 0; i < options.members; ++i)
    if (i != last) stop(holder(i), false);
  const auto group = [this]() -> const mirror::Group& { return clients_.back()->group; };
  until([&] { return group().copies() == mirror::bit(last) || clients_.back()->dead; });
  go_on(kSceneSteps / 10);
  clients_.back()->dead = true;
  stop(holder(last), false);
  wipe_vote();
  for (MirrorNode& node : nodes_) node.up = true;
  stop(holder(last), false);
  replace_clients();
  go_on(kSceneSteps / 3);
  for (MirrorNode& node : nodes_) node.up = true;
  go_on(kSceneSteps / 10);
}

/// Nothing goes on without a disk.
void MirrorWorld::leave_only_vote() {
  if (!make_whole()) return;
  const auto group = [this]() -> const mirror::Group& { return clients_.back()->group; };
  const unsigned last = any_disk();
  for (unsigned i = 0; i < options.members; ++i)
    if (i != last) stop(holder(i), false);
  until([&] { return group().copies() == mirror::bit(last) || clients_.back()->dead; });
  go_on(kSceneSteps / 10);
  stop(holder(last), false);
  go_on(kSceneSteps / 10);
  for (MirrorNode& node : nodes_) node.up = true;
  stop(holder(last), false);
  go_on(kSceneSteps / 3);
  for (MirrorNode& node : nodes_) node.up = true;
  go_on(kSceneSteps / 10);
}

/// Two clients live, and each lacks the disk with which the other one would go on.
void MirrorWorld::race_for_vote() {
  if (!make_whole()) return;
  go_on(kSceneSteps / 10);
  MirrorClient& first = *clients_.back();
  const unsigned disk = any_disk();
  first.cut[disk] = 1;
  new_client(holders());
  MirrorClient& next = *clients_.back();
  for (unsigned i = 0; i < options.members; ++i) next.cut[i] = i == disk ? 0 : 1;
  for (auto i = rng.below(kSceneSteps / 2); i > 0 && !next.dead; --i) {
    if (!first.dead && rng.chance(300))
      act(first);
    else
      step(false);
  }
  first.cut.assign(first.cut.size(), 0);
  next.cut.assign(next.cut.size(), 0);
  go_on(kSceneSteps / 10);
}

/// True if all that there is has been told to all.
bool MirrorWorld::is_whole_after_use() {
  if (!make_whole()) return false;
  go_on(kSceneSteps / 10);
  return !clients_.back()->dead && clients_.back()->group.whole();
}

/// No client lives before, and each of two lacks a disk that the other one has.
void MirrorWorld::race_to_attach() {
  if (!is_whole_after_use()) return;
  replace_clients();
  MirrorClient& first = *clients_.back();
  const unsigned disk = any_disk();
  first.cut[disk] = 1;
  new_client(holders());
  MirrorClient& next = *clients_.back();
  for (unsigned i = 0; i < options.members; ++i) next.cut[i] = i == disk ? 0 : 1;
  const auto one_lives = [&] {
    return (!first.dead && first.group.live()) || (!next.dead && next.group.live());
  };
  for (unsigned left = 4 * kSceneSteps; !one_lives(); --left) {
    if (left == 0) throw MirrorViolation("two clients keep each other from attaching");
    rng.chance(300) ? act(first) : step(false);
  }
  go_on(kSceneSteps / 20);
  first.cut.assign(first.cut.size(), 0);
  next.cut.assign(next.cut.size(), 0);
  go_on(kSceneSteps / 10);
}

/// Only the vote has recorded the newest view. All disks in it lose their power, and the one that
/// is not has everything.
void MirrorWorld::leave_void_view() {
  if (!is_whole_after_use()) return;
  const unsigned other = any_disk();
  stop(holder(other), false);
  const auto has_left = [&](unsigned member) {
    return !mirror::has(ledger_.entry(holder(member)).view.set, other);
  };
  MirrorClient& client = *clients_.back();
  if (!until([&] { return has_left(vote()) || client.dead; }) || client.dead) return;
  client.dead = true;
  for (unsigned i = 0; i < options.members; ++i)
    if (has_left(i)) return;
  for (unsigned i = 0; i < options.members; ++i)
    if (i != other) stop(holder(i), true);
  for (MirrorNode& node : nodes_) node.up = true;
  replace_clients();
  go_on(kSceneSteps / 3);
}

/// A disk is to join, as only the vote has recorded. Another one is set back to before the view
/// without that, which the vote knows. The disk that has everything comes later.
void MirrorWorld::go_back_beside_void_view() {
  if (options.members < 3 || !make_whole()) return;
  const unsigned joins = any_disk();
  const unsigned back = (joins + 1) % options.members;
  const auto vote_entry = [this]() -> MirrorEntry& { return ledger_.entry(holder(vote())); };
  save(back);
  leave_out(joins);
  const auto knows_loss = [&] {
    return !mirror::has(vote_entry().confirmed.set, joins) && is_settled();
  };
  if (!until(knows_loss)) return;
  go_on(kSceneSteps / 20);
  held(joins).up = true;
  if (!until([&] { return mirror::has(vote_entry().view.set, joins); })) return;
  for (unsigned i = 0; i < options.members; ++i)
    if (i != joins && mirror::has(ledger_.entry(holder(i)).view.set, joins)) return;
  clients_.back()->dead = true;
  if (!held(back).saved || vote_entry().known[holder(back)] <= held(back).saved->entry.aged) return;
  set_back(back);
  for (unsigned i = 0; i < options.members; ++i)
    if (i != joins && i != back) stop(holder(i), false);
  held(back).up = true;
  replace_clients();
  go_on(kSceneSteps / 3);
  for (MirrorNode& node : nodes_) node.up = true;
  go_on(kSceneSteps / 10);
}

/// One disk has lost its power with the client, and the next client knows another server than that
/// of the other one, which has what was not flushed.
void MirrorWorld::misname_last() {
  if (options.members != 2 || !is_whole_after_use()) return;
  const unsigned other = any_disk();
  clients_.back()->dead = true;
  stop(holder(1 - other), true);
  std::vector<unsigned> names = holders();
  names[other] = another_node(other);
  for (MirrorNode& node : nodes_) node.up = true;
  new_client(names);
  go_on(kSceneSteps / 3);
  replace_clients();
  go_on(kSceneSteps / 10);
}

/// A disk is set back to before the end of quiet regions, in the same view. Another one is away, so
/// that the vote must know it.
void MirrorWorld::go_back_within_view() {
  if (!make_whole()) return;
  const unsigned member = any_disk();
  const unsigned other = (member + 1) % options.members;
  save(member);
  go_on(kSceneSteps / 5);
  const auto group = [this]() -> const mirror::Group& { return clients_.back()->group; };
  quiet_ = true;
  until([&] { return group().cold() && net_.empty(); });
  quiet_ = false;
  clients_.back()->dead = true;
  stop(holder(other), false);
  if (may_set_back(member)) set_back(member);
  held(member).up = true;
  replace_clients();
  go_on(kSceneSteps / 3);
  for (MirrorNode& node : nodes_) node.up = true;
  go_on(kSceneSteps / 10);
}

}  // namespace sim
