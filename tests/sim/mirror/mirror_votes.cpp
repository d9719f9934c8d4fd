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

/// Both live, and each lacks the disk with which the other one would go on.
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

}  // namespace sim
