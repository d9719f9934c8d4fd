// SPDX-License-Identifier: BSD-3-Clause
// The faults in the world of a mirror.
#include <algorithm>
#include <bit>
#include <utility>

#include "tests/sim/mirror/mirror_world.hpp"

namespace sim {

/// For a while it is always the same members that are there, so that things come to an end.
void MirrorWorld::next_scene() {
  if (mood_.hand_on) return hand_on();
  if (rng.chance(300)) clients_.back()->dead = true;
  const unsigned member = any_member();
  if (rng.chance(400) && (member == vote() || may_lose_power())) stop(holder(member), true);
  const std::uint64_t up = rng.between(1, (1U << voters()) - 1);
  for (unsigned i = 0; i < voters(); ++i) {
    if ((up >> i & 1) != 0)
      held(i).up = true;
    else if (held(i).up)
      stop(holder(i), false);
  }
}

/// One member comes or goes when all that are there are in step. Of two the one that came last
/// stays, and has to know from the other one what the rest lacks.
void MirrorWorld::hand_on() {
  mirror::MemberSet up = 0;
  for (unsigned i = 0; i < voters(); ++i)
    if (held(i).up) up = mirror::with(up, i);
  const MirrorClient& client = *clients_.back();
  if (client.dead || !client.group.live() || client.group.in_step() != up) return;
  const unsigned member = any_member();
  if (mirror::size(up) == 1)
    held(member).up = true;
  else if (disks_of(mirror::without(up, member)) == 0)
    return;
  else if (mirror::has(up, member) && (mirror::size(up) > 2 || recent_ != mirror::bit(member)))
    stop(holder(member), false);
}

/// A member whose vote the next client may need, when the present one and a third member are gone.
void MirrorWorld::lose_power(unsigned member) {
  stop(holder(member), true);
  if (!rng.chance(mood_.with_client)) return;
  change_members();
  held(member).up = true;
}

/// The next client meets other members than the one that dies now.
void MirrorWorld::change_members() {
  clients_.back()->dead = true;
  if (rng.chance(300)) return;
  leave_out(any_member());
}

/// All others are there.
void MirrorWorld::leave_out(unsigned member) {
  for (MirrorNode& node : nodes_) node.up = true;
  stop(holder(member), false);
}

/// All of the newest view have recorded it, and no other one is on its way.
bool MirrorWorld::is_settled() const {
  const bool recording = std::any_of(net_.begin(), net_.end(), [](const Message& message) {
    return message.command.order == mirror::Order::view;
  });
  if (recording) return false;
  return ledger_.settled();
}

/// Only while another member in step has everything: the rest nobody could bring back.
bool MirrorWorld::may_lose_power() const {
  if (!is_settled()) return false;
  for (unsigned i = 0; i < options.members; ++i)
    if (mirror::has(newest().set, i) && ledger_.entry(holder(i)).epoch != held(i).epoch)
      return false;
  return mirror::size(disks_of(newest().set)) > 1;
}

/// The group comes back without an operator's word, as the others are enough, and safe.
bool MirrorWorld::may_replace(unsigned member) const {
  return newest().id != mirror::ViewId{} && may_lose_power() && is_spared(member);
}

bool MirrorWorld::is_spared(unsigned member) const {
  const mirror::View confirmed = ledger_.confirmed_without(holder(member));
  if (confirmed.id == mirror::ViewId{}) return false;
  const auto spares = [&](mirror::MemberSet set) {
    const auto others = mirror::without(static_cast<mirror::MemberSet>(set & newest().set), member);
    const bool goes_on_alone = are_enough(mirror::bit(member), set);
    return !mirror::has(set, member) || (!goes_on_alone && are_enough(others, set));
  };
  return spares(newest().set) && spares(confirmed.set);
}

/// An empty disk comes in place of a member's. A client that lives could still record a view in
/// which that one decides, and only an operator knows that it is gone.
void MirrorWorld::replace(unsigned member) {
  if (mirror::has(newest().set, member))
    for (const auto& client : clients_) client->dead = true;
  const unsigned place = holder(member);
  stop(place, true);
  say("its disk is replaced");
  MirrorNode& node = nodes_[place];
  fill(node, rng.chance(mood_.foreign));
  node.saved.reset();
  ledger_.forget(place);
  node.member = std::make_unique<mirror::Member>(first_record(member), node.epoch);
}

void MirrorWorld::stop(unsigned place, bool power) {
  MirrorNode& node = nodes_[place];
  if (power) {
    node.cached = node.durable;
    ++node.epoch;
  }
  say("node " + std::to_string(place) + (power ? " loses its power" : " is killed"));
  const bool is_kept = node.member->is_kept();
  node.member = std::make_unique<mirror::Member>(
      is_kept ? node.member->record() : first_record(node.number), node.epoch);
  node.up = false;
  ledger_.lost(place);
  lose_links(place, node.number);
}

/// The whole site. Nothing that was under way arrives any more.
void MirrorWorld::blackout() {
  for (unsigned i = 0; i < nodes_.size(); ++i) stop(i, true);
  for (const auto& client : clients_) client->dead = true;
  net_.clear();
  checker.blackout();
}

/// Mostly all of them, as they have the same content.
void MirrorWorld::fill_up() {
  const bool full = rng.chance(700);
  for (MirrorNode& node : nodes_)
    if (rng.chance(900)) node.full = full;
}

void MirrorWorld::fault() {
  if (rng.chance(mood_.full)) return fill_up();
  const bool recent = recent_ != 0 && rng.chance(mood_.at_recent);
  const auto member = recent ? static_cast<unsigned>(std::countr_zero(recent_)) : any_member();
  const std::uint64_t chance = rng.below(100);
  if (chance == 99) return blackout();
  if (chance >= 95 && member == vote()) return wipe_vote();
  if (chance >= 90 && member == vote()) return claim_by_others();
  if (chance == 98 && may_replace(member)) return replace(member);
  if (chance >= 95) {
    held(member).unreadable[rng.below(kSectors)] = 1;
    return;
  }
  MirrorClient& client =
      *clients_[rng.chance(700) ? clients_.size() - 1 : rng.below(clients_.size())];
  if (chance < 20) return stop(holder(member), false);
  if (chance < 50) {
    for (MirrorNode& node : nodes_) node.up = node.up || rng.chance(mood_.revive);
  } else if (chance < 65) {
    if (member == vote() || may_lose_power()) lose_power(member);
  } else if (chance < 82) {
    client.cut[member] = 1;
  } else {
    for (const auto& other : clients_)
      for (char& cut : other->cut) cut = cut != 0 && rng.chance(400) ? 1 : 0;
  }
}

/// All members are there, and in step with a new client.
bool MirrorWorld::make_whole() {
  for (MirrorNode& node : nodes_) {
    node.up = true;
    node.full = false;
  }
  replace_clients();
  return until([this] { return clients_.back()->group.whole(); });
}

/// A live group meets a member that lone clients have claimed. Its client ends when another member
/// knows the view of the higher term, and the next client does not meet that one.
void MirrorWorld::rise_half_way() {
  const auto group = [this]() -> const mirror::Group& { return clients_.back()->group; };
  const unsigned claimed = any_member();
  if (!make_whole()) return;
  leave_out(claimed);
  if (!until([&] { return !mirror::has(group().in_step(), claimed); })) return;
  mirror::Member& member = *held(claimed).member;
  member.claim(member.record().promised + rng.between(1, 3), kLoneSession);
  say("lone clients have claimed member " + std::to_string(claimed));
  held(claimed).up = true;
  const std::uint64_t term = group().term();
  const auto knows = [&](const MirrorNode& node) {
    return node.member->record().view.id.term > term;
  };
  if (!until([&] { return std::ranges::any_of(nodes_, knows); })) return;
  const unsigned first = std::ranges::find_if(nodes_, knows)->number;
  replace_clients();
  net_.clear();
  ledger_.all_lost();
  leave_out(first);
  if (rng.chance(700)) stop(holder(claimed), false);
  until([&] { return group().live(); });
  for (auto i = rng.below(kSceneSteps / 10); i > 0; --i) step(false);
  for (MirrorNode& node : nodes_) node.up = true;
  replace_clients();
}

void MirrorWorld::go_on(std::uint64_t most) {
  for (auto i = rng.below(most); i > 0; --i) step(false);
}

/// A client sleeps while another one begins, which does not meet one of the members. It wakes up
/// with the answers of that one.
void MirrorWorld::stall() {
  if (!make_whole()) return;
  MirrorClient& sleeper = *clients_.back();
  for (auto i = rng.below(kSceneSteps / 10); i > 0; --i) step(false);
  sleeper.asleep = true;
  new_client(holders());
  MirrorClient& next = *clients_.back();
  const unsigned member = any_member();
  next.cut[member] = 1;
  until([&] { return next.group.live() || next.dead; });
  for (auto i = rng.below(kSceneSteps / 20); i > 0; --i) step(false);
  wake_up();
  for (auto i = rng.below(kSceneSteps / 10); i > 0; --i) step(false);
  next.cut[member] = 0;
}

/// Its client stays, and knows what it has missed.
void MirrorWorld::lose_twice() {
  const auto group = [this]() -> const mirror::Group& { return clients_.back()->group; };
  if (!make_whole()) return;
  const unsigned member = any_disk();
  go_on(kSceneSteps / 10);
  stop(holder(member), may_lose_power() && rng.chance(700));
  if (!until([&] { return !mirror::has(group().in_step(), member); })) return;
  go_on(kSceneSteps / 20);
  held(member).up = true;
  const auto returns = [&] {
    return group().progress(member).standing == mirror::Group::Standing::resync;
  };
  if (!until(returns)) return;
  char& cut = clients_.back()->cut[member];
  cut = rng.chance(500) ? 1 : 0;
  go_on(kSceneSteps / 50);
  stop(holder(member), false);
  cut = 0;
  go_on(kSceneSteps / 20);
  held(member).up = true;
}

/// A disk shows what nobody has written, and an operator has another member's data replace it.
/// New room would be made equal from any member.
void MirrorWorld::rot() {
  using State = mirror::Verification::State;
  if (!make_whole()) return;
  quiet_ = true;
  mirror::Group& group = clients_.back()->group;
  if (disks_grow())
    for (MirrorNode& node : nodes_) enlarge(node, kMostSectors);
  const auto still = [&] {
    return group.whole() && !group.verification().is_running() && has_grown(*clients_.back());
  };
  // A forced decision may have come into force meanwhile, with another disk.
  if (until(still) && clients_.back()->names == holders()) {
    const unsigned member = any_disk();
    const unsigned good = (member + 1) % options.members;
    MirrorNode& node = held(member);
    // A region of which a member cannot read something is repaired, and not compared.
    for (MirrorNode& each : nodes_) std::fill(each.unreadable.begin(), each.unreadable.end(), 0);
    rotten_ = rng.below(kSectors);
    found_ = false;
    const std::uint64_t before = std::exchange(node.cached[*rotten_], kRotten);
    node.durable[*rotten_] = kRotten;
    const unsigned verify = std::exchange(mood_.verify, 0);
    const bool begins = group.verify(good);  // one before may be about to end
    const auto ended = [&] { return !group.verification().is_running() && group.whole(); };
    const bool ends = until(ended) && begins;
    const mirror::Verification& pass = group.verification();
    if (ends && pass.state == State::done && !found_)
      throw MirrorViolation("a difference is not found");
    if (ends && pass.state == State::done && node.cached[*rotten_] != before)
      throw MirrorViolation("a difference is not repaired");
    if (node.cached[*rotten_] == kRotten) node.cached[*rotten_] = node.durable[*rotten_] = before;
    mood_.verify = verify;
    rotten_.reset();
  }
  quiet_ = false;
}

/// An operator has the mirror end, while members and the client die. Then nobody attaches to it any
/// more, or it is a mirror still. True: it has ended.
bool MirrorWorld::dissolve() {
  if (!make_whole()) return false;
  go_on(kSceneSteps / 10);
  if (rng.chance(300)) {  // members are not equal yet
    replace_clients();
    if (!until([this] { return clients_.back()->group.live(); })) return false;
  }
  MirrorClient& client = *clients_.back();
  const unsigned member = any_disk();
  const unsigned other = any_member();
  if (other != member && rng.chance(300)) {
    leave_out(other);
    go_on(kSceneSteps / 10);
  }
  quiet_ = true;
  until([&] { return client.requests.empty() || client.dead; });
  client.dissolves = !client.dead && client.group.dissolve(member);
  const auto ordered = [&] {
    return std::ranges::any_of(net_, [](const Message& message) {
      return message.command.order == mirror::Order::dissolve && !message.is_answer;
    });
  };
  const bool is_late = rng.chance(300);  // the order arrives when the next client is there
  const auto latest = rng.chance(500) ? rng.below(150) : kSceneSteps;
  for (unsigned i = 0; i < latest && client.dissolves && !client.dead; ++i) {
    if (is_late && ordered()) client.cut[member] = 1;
    if (client.cut[member] != 0) break;
    step(false);
  }
  const bool dies = client.cut[member] != 0 || rng.chance(700);
  if (client.dissolves && dies) client.dead = true;
  if (client.dissolves && !dies) stop(holder(member), may_lose_power());
  quiet_ = false;
  for (MirrorNode& node : nodes_) node.up = true;
  if (rng.chance(300)) stop(holder(member), false);
  replace_clients();
  if (client.cut[member] != 0) until([&] { return clients_.back()->group.live(); });
  client.cut[member] = 0;
  go_on(kSceneSteps / 3);
  return plain_.has_value();
}

/// A client meets one member only, and an operator has it go on with that, unless it may anyway, or
/// has nothing of the mirror. The others come later.
void MirrorWorld::force_one() {
  const unsigned member = any_disk();
  const unsigned place = holder(member);
  if (!may_force(place) || ledger_.entry(place).view.id == mirror::ViewId{}) return;
  replace_clients();
  const std::uint64_t before = forced_;
  for (unsigned i = 0; i < voters(); ++i) clients_.back()->cut[i] = i == member ? 0 : 1;
  until([&] {
    if (forced_ == before) clients_.back()->force(member);
    return clients_.back()->group.live();
  });
  std::fill(clients_.back()->cut.begin(), clients_.back()->cut.end(), 0);
}

}  // namespace sim
