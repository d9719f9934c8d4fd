// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/mirror/mirror_world.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "tests/sim/mirror/mirror_wire.hpp"

namespace sim {
namespace {

constexpr unsigned kHealingSteps = 30000;
constexpr unsigned kBusySteps = 300;  // of the healing ones: requests go on
constexpr std::uint64_t kSessionsPerClient = 1000000;

void tell_zeroes(const Values& data, mirror::Answer& answer) {
  const auto place = [&](auto at) { return static_cast<std::uint64_t>(at - data.begin()); };
  for (auto at = data.begin(); (at = std::find_if(at, data.end(), is_hole)) != data.end();) {
    const auto end = std::find_if_not(at, data.end(), is_hole);
    answer.zeroes.push_back({place(at), place(end)});
    at = end;
  }
  answer.told = data.size();
}

}  // namespace

MirrorWorld::MirrorWorld(std::uint64_t seed, bool trace)
    : rng{seed},
      trace_{trace},
      lag_{~seed},
      growth_{seed ^ 0x9E3779B97F4A7C15},
      refusals_{seed ^ 0x7265667573616C},
      more_{seed ^ 0x6d6f7265} {
  options.members = rng.pick({2U, 3U, 3U, 3U, 4U, 5U});
  options.region_sectors = rng.pick({1U, 2U, 4U, 4U});
  options.unit_sectors = rng.pick({1U, 2U, 4U});
  options.span = rng.pick({1U, 3U, 8U});
  options.span_beside = 2;
  options.granule = kSectorBytes;
  options.most_regions = kMostSectors;
  options.degraded = rng.chance(250) ? mirror::Degraded::quorum : mirror::Degraded::allow;
  mood_ = {.fault = rng.pick({5U, 15U, 25U, 60U}),
           .request = rng.pick({100U, 300U, 500U, 700U}),
           .cool = rng.pick({10U, 50U, 200U}),
           .revive = rng.pick({150U, 400U, 700U, 900U}),
           .at_recent = rng.pick({0U, 300U, 700U}),
           .half_way = rng.pick({0U, 20U, 100U, 300U}),
           .with_client = rng.pick({0U, 500U}),
           .scene = rng.pick({0U, 40U, 80U, 160U}),
           .hand_on = rng.chance(200),
           .copy = rng.pick({300U, 1000U}),
           .at_once = rng.pick({1U, 2U, 4U}),
           .force = rng.pick({0U, 0U, 1000U}),
           .foreign = rng.pick({0U, 0U, 300U}),
           .full = rng.pick({0U, 0U, 150U}),
           .identity = rng.pick({0U, 10U, 30U}),
           .names = rng.pick({0U, 0U, 200U, 500U}),
           .late = rng.pick({0U, 0U, 500U}),
           .sleep = rng.pick({0U, 0U, 500U}),
           .time = rng.pick({0U, 0U, 20U}),
           .wait = rng.pick({100U, 700U}),
           .slow = rng.pick({0U, 0U, 300U}),
           .zeroes = rng.pick({0U, 0U, 100U, 400U}),
           .no_zero = rng.pick({0U, 0U, 300U}),
           .no_hint = rng.pick({0U, 0U, 300U}),
           .astray = rng.pick({0U, 0U, 300U}),
           .verify = rng.pick({0U, 0U, 30U}),
           .steps = rng.pick({300U, 700U, 1500U}),
           .lag = lag_.pick({0U, 0U, 300U, 700U}),
           .grow = growth_.pick({0U, 0U, 10U, 30U}),
           .grows = growth_.chance(300),
           .unrecorded = refusals_.pick({0U, 0U, 0U, 300U}),
           .put_off = refusals_.pick({0U, 0U, 0U, 100U})};
  if (mood_.scene != 0) mood_.fault = 2;
  if (options.members > 3) mood_.risen = rng.chance(500);
  mood_.back = rng.chance(300);
  mood_.joins = rng.chance(100);
  mood_.again = rng.chance(100);
  mood_.twice = rng.chance(150);
  mood_.dissolves = rng.chance(150);
  mood_.rots = rng.chance(150);
  mood_.stalls = options.members > 2 && rng.chance(100);
  const bool is_new = rng.chance(400);
  draw_vote(seed);
  if (!options.vote && more_.chance(400)) {
    mood_.more = 1 + static_cast<unsigned>(more_.below(mood_.steps));
    mood_.fewer = more_.pick({0U, 300U, 600U});
  }
  const bool is_old = rng.chance(150);
  votes_ = votes_ && !is_new && !is_old;
  const auto in_step = static_cast<mirror::MemberSet>((1U << options.members) - 1);
  if (!is_new) ledger_.begin(votes_ ? mirror::with(in_step, vote()) : in_step);
  for (unsigned i = 0; i < voters(); ++i) {
    const bool is_blank = is_new || (i == vote() && !votes_);
    nodes_.push_back(is_blank ? new_node(i) : node_in_step(i, is_old));
    named_.push_back(i);
  }
  if (is_new && rng.chance(200)) mistype(static_cast<unsigned>(rng.below(options.members)));
  if (!is_new && is_old) add_displaced(static_cast<unsigned>(rng.below(options.members)));
  new_client(holders());
}

/// From a source of its own, so that groups without a vote are what they were.
void MirrorWorld::draw_vote(std::uint64_t seed) {
  Rng draws{seed ^ 0x766f7465};
  options.vote = draws.chance(350);
  if (!options.vote) return;
  votes_ = draws.chance(600);
  mood_.host = draws.chance(300);
  mood_.both = draws.chance(300);
  mood_.wiped = draws.chance(150);
  mood_.only_vote = draws.chance(150);
  mood_.race = draws.chance(200);
  if (draws.chance(300)) options.members = 2;  // which votes are for
  ledger_.set_vote(vote());
  mood_.races_to_attach = draws.chance(150);
  mood_.void_view = draws.chance(200);
  mood_.void_join = draws.chance(200);
  mood_.misnamed = draws.chance(200);
  mood_.back_in_view = draws.chance(200);
}

/// A client of another mirror, whose URI names the server by mistake, claims it and goes.
void MirrorWorld::mistype(unsigned member) {
  MirrorNode& node = nodes_[member];
  node.member->claim(1, kSessionsPerClient - 1);
  node.elsewhere = node.member->is_kept();
  stop(member, false);
  node.up = true;
}

mirror::MemberRecord MirrorWorld::first_record(unsigned member) {
  const std::uint64_t size = kSectors * kSectorBytes;
  auto record = member == vote()
                    ? mirror::MemberRecord::first(mirror::kVote, options.members, 0, region_bytes())
                    : mirror::MemberRecord::first(member, options.members, size, region_bytes());
  record.disk = next_disk_++;
  return record;
}

/// A member of a group that has never had a view. Only the first one has the right content.
MirrorNode MirrorWorld::new_node(unsigned member) {
  MirrorNode node;
  node.number = member;
  node.unreadable.resize(kMostSectors);
  fill(node, member != 0 && member != vote() && rng.chance(mood_.foreign));
  if (member == 0) node.cached = node.durable = Values(kMostSectors, 0);
  node.member = std::make_unique<mirror::Member>(first_record(member), node.epoch);
  return node;
}

/// A server that has never been in the group, in the place of a member. It may be in another group.
unsigned MirrorWorld::another_node(unsigned member) {
  const auto place = static_cast<unsigned>(nodes_.size());
  MirrorNode& node = nodes_.emplace_back(new_node(member));
  if (member == 0) fill(node, rng.chance(mood_.foreign));
  return place;
}

/// A member of a group whose last client left nothing to be made equal. `is_old`: its record is of
/// version 1, and names no disks.
MirrorNode MirrorWorld::node_in_step(unsigned member, bool is_old) {
  MirrorNode node;
  node.number = member;
  node.unreadable.resize(kMostSectors);
  node.overwrite = true;
  node.cached = node.durable = Values(kMostSectors, 0);
  mirror::MemberRecord record = first_record(member);
  if (votes_) record.view.set = mirror::with(record.view.set, mirror::kVote);
  record.view.id = {2, 1};
  record.confirmed = record.view;
  record.promised = record.view.id.term;
  record.disk = member + 1;
  next_disk_ = voters() + 1;
  for (unsigned i = 0; i < voters(); ++i) record.pedigree.push_back({i + 1, {record.view.id, 0}});
  if (options.vote && !votes_) record.pedigree.back() = {};
  record.pedigree = mirror::renumbered(std::move(record.pedigree), options.members);
  if (is_old) record.pedigree.assign(mirror::kMaxMembers, {});
  record.whole_epoch = node.epoch;
  record.maps.active.clear();
  node.member = std::make_unique<mirror::Member>(std::move(record), node.epoch);
  return node;
}

/// A server that was discarded before its record named disks. Another one has its place.
void MirrorWorld::add_displaced(unsigned member) {
  MirrorNode node = node_in_step(member, true);
  mirror::MemberRecord record = node.member->record();
  record.view.id = record.confirmed.id = {1, 1};
  record.promised = 1;
  record.disk = next_disk_++;
  node.member = std::make_unique<mirror::Member>(std::move(record), node.epoch);
  ledger_.begin_displaced(static_cast<unsigned>(nodes_.size()), member);
  nodes_.push_back(std::move(node));
}

void MirrorWorld::say(const std::string& text) const {
  if (trace_) std::printf("%s\n", text.c_str());
}

void MirrorWorld::new_client(std::vector<unsigned> names) {
  mirror::GroupOptions own = options;
  own.members = static_cast<unsigned>(names.size()) - (options.vote ? 1 : 0);
  own.size = told_size(names);
  own.first_session = clients_.size() * kSessionsPerClient + 1;
  const auto number = static_cast<unsigned>(clients_.size());
  std::string text = "client " + std::to_string(number) + " begins with";
  for (const unsigned node : names) text += " " + std::to_string(node);
  clients_.push_back(std::make_unique<MirrorClient>(*this, number, own, std::move(names)));
  say(text);
}

/// The next one begins when none of the others lives any more.
void MirrorWorld::replace_clients() {
  for (const auto& client : clients_) client->dead = true;
  new_client(holders());
}

void MirrorWorld::run() {
  for (unsigned i = 1; i <= mood_.steps; ++i) {
    step(true);
    if (mood_.scene != 0 && i % mood_.scene == 0) next_scene();
    if (i == mood_.more) add_copy();
  }
  if (mood_.risen) rise_half_way();
  if (mood_.back) go_back();
  if (mood_.joins) go_back_while_joining();
  if (mood_.again) begin_again();
  if (mood_.stalls) stall();
  if (mood_.grows) grow();
  if (mood_.twice) lose_twice();
  if (mood_.rots) rot();
  vote_scenes();
  if (mood_.dissolves && dissolve()) return;
  heal();
  if (rng.chance(mood_.force)) force_one();
  // The last thread of many clients has few turns, and the new room takes some more.
  const unsigned most = disks_grow() ? 3 * kHealingSteps : kHealingSteps;
  for (unsigned i = 0; i < most; ++i) {
    quiet_ = i >= kBusySteps;
    if (i % 100 == 0 && clients_.back()->names != holders()) replace_clients();
    if (i > kHealingSteps / 2 && (forced_ != 0 || in_doubt_)) force_again();
    if (i > kHealingSteps / 2 && forced_ != 0) free_displaced();
    if (options.vote && i % 1000 == 0) free_vote_of_others();
    // The turns of many clients that have gone leave few to this one.
    if (mood_.lag != 0 && i > kHealingSteps / 2) carry_late_ones(*clients_.back());
    step(false);
    if (healed()) return compare();
  }
  throw MirrorViolation("the group never becomes whole again");
}

/// Nothing overtakes the end of a session. That with a vote stands when another client has it, and
/// what arrives then is refused.
MirrorLedger::Way MirrorWorld::way_of(const MirrorLedger::Debt& debt) const {
  using Way = MirrorLedger::Way;
  const MirrorClient& client = *clients_[debt.client];
  const bool stands = client.linked[debt.member] == debt.link && client.broken[debt.member] == 0;
  const std::uint64_t served = nodes_[debt.place].member->session();
  const bool refuses = debt.member == vote() && served / kSessionsPerClient != debt.client;
  if (!stands || refuses) return Way::lost;
  const auto under_way = [&](const Message& message) {
    return message.client == debt.client && message.link == debt.link && !message.is_answer &&
           message.node == debt.place;
  };
  return std::ranges::any_of(net_, under_way) || std::ranges::any_of(unsent_, under_way)
             ? Way::under_way
             : Way::arrived;
}

void MirrorWorld::step(bool faults) {
  ledger_.settle([this](const MirrorLedger::Debt& debt) { return way_of(debt); });
  const std::uint64_t chance = rng.below(1000);
  if (rng.chance(mood_.time)) time_ += kLease;
  if (mood_.lag != 0 && lag_.chance(400)) carry_late_ones(*clients_[lag_.below(clients_.size())]);
  if (mood_.grow != 0 && growth_.chance(mood_.grow))
    enlarge(nodes_[growth_.below(nodes_.size())], growth_.between(kSectors, kMostSectors));
  if (disks_grow() && growth_.chance(30)) look_at_rooms(*clients_.back());
  if (mood_.put_off != 0) put_off_growth();
  if (chance < 550 && !net_.empty()) return deliver();
  if (faults && rng.chance(mood_.fault)) return fault();
  if (faults && rng.chance(mood_.identity)) return change_identity();
  if (faults && chance >= 550 && chance < 553) clients_.back()->dead = true;
  if (faults && half_way() && rng.chance(mood_.half_way)) change_members();
  if (clients_.back()->dead || (chance == 580 && faults)) {
    clients_.back()->asleep = rng.chance(mood_.sleep);
    return new_client(some_names());
  }
  if (chance == 581) wake_up();
  const bool older = rng.chance(history_ != 0 ? 400 : 100);  // zombies go on
  MirrorClient& client = older ? *clients_[rng.below(clients_.size())] : *clients_.back();
  if (!client.dead && !client.asleep) act(client);
}

void MirrorWorld::wake_up() {
  for (const auto& client : clients_) client->asleep = false;
}

void MirrorWorld::send(Message message) {
  if (mood_.lag != 0 && lag_.chance(mood_.lag))
    unsent_.push_back(std::move(message));
  else
    transmit(std::move(message));
}

/// A request's data leave its memory now, as they do from a caller's buffer.
void MirrorWorld::transmit(Message message) {
  const mirror::Order order = message.command.order;
  const std::uint64_t operation = message.command.operation;
  const auto& memory = sender_of(message).memory;
  const bool uses = operation != 0 && operation < mirror::Group::kOwn &&
                    (order == mirror::Order::write || order == mirror::Order::zero ||
                     order == mirror::Order::copy || order == mirror::Order::read);
  if (uses && !memory.contains(operation))
    throw MirrorViolation("memory is used that its user has back");
  if (uses && order != mirror::Order::read) message.data = memory.at(operation);
  net_.push_back(std::move(message));
}

/// A thread of a client has its turn: it sends a command, or learns that sessions are over.
void MirrorWorld::carry_late_ones(MirrorClient& client) {
  const auto is_its = [&](const Message& each) { return each.client == client.number; };
  if (client.dead && std::erase_if(unsent_, is_its) != 0) ledger_.lost_by(client.number);
  if (client.dead || client.asleep) return;
  if (lag_.chance(100)) return client.part();
  const auto first = static_cast<std::ptrdiff_t>(lag_.below(unsent_.size() + 1));
  const auto found =
      std::find_if(unsent_.begin() + first, unsent_.end(),
                   [&](const Message& message) { return message.client == client.number; });
  if (found == unsent_.end()) return;
  Message message = std::move(*found);
  unsent_.erase(found);
  transmit(std::move(message));
}

/// One member knows a view, or has got a copy, that others may not know of.
bool MirrorWorld::half_way() const {
  return std::any_of(net_.begin(), net_.end(), [&](const Message& message) {
    const bool own = message.command.operation >= mirror::Group::kOwn;
    return message.client + 1 == clients_.size() && message.is_answer &&
           (message.command.order == mirror::Order::view ||
            message.command.order == mirror::Order::grow || own);
  });
}

void MirrorWorld::deliver() {
  const std::size_t at = rng.below(net_.size());
  Message message = net_[at];
  MirrorClient& client = *clients_[message.client];
  if (client.cut[message.command.member] != 0 || (message.is_answer && client.asleep)) return;
  net_.erase(net_.begin() + static_cast<std::ptrdiff_t>(at));
  if (message.is_answer) return receive(message);
  if (nodes_[message.node].up) execute(std::move(message));
}

/// A member answers a claim when the sessions before have ended there. Their clients may learn of
/// it late. Nothing more arrives from them: an answer of before the claim could show no old data.
void MirrorWorld::end_other_sessions(const Message& message) {
  const mirror::Command& command = message.command;
  if (command.term <= nodes_[message.node].member->record().promised) return;
  for (const auto& other : clients_) {
    const bool knows = command.member < other->names.size();
    if (other->number == message.client || !knows || other->linked[command.member] == 0) continue;
    if (other->names[command.member] != message.node) continue;
    if (!other->asleep && !rng.chance(mood_.late)) {
      end_session(*other, command.member);
      continue;
    }
    other->broken[command.member] = 1;
    other->granted[command.member] = 0;
    other->late = true;
    std::erase_if(net_, [&](const Message& each) {
      return each.is_answer && each.client == other->number && each.node == message.node;
    });
  }
}

void MirrorWorld::end_session(MirrorClient& client, unsigned member) {
  client.session_over(member);
  client.broken[member] = 0;
  if (!client.dead) client.group.link_down(member);
}

void MirrorWorld::execute(Message message) {
  const mirror::Command& command = message.command;
  // A claim is an exchange with a session that stands.
  const bool stands = clients_[message.client]->linked[command.member] == message.link;
  if (command.order == mirror::Order::claim && !stands) return;
  const bool elsewhere = nodes_[message.node].elsewhere;
  if (command.order == mirror::Order::claim && !elsewhere && command.member != vote())
    end_other_sessions(message);
  message.answer.tag = command.tag;
  if (command.order == mirror::Order::pull && !message.lands) {
    const MirrorNode& source = source_of(message);
    message.lands = pulls_from(source, message);
    if (message.lands) return pull(std::move(message), source);
  }
  mirror::Member& member = *nodes_[message.node].member;
  if (message.lands && !member.awaits_pull(message.pull)) return;
  message.answer.error = elsewhere ? EEXIST : carry_out(message);
  if (message.lands) member.end_pull(message.pull);
  if (message.answer.error == 0)
    message.told =
        ledger_.carried_out(message.node, command, message.told, nodes_[message.node].epoch);
  message.is_answer = true;
  if (trace_) {
    std::printf(
        "client %u member %u node %u order %d term %llx session %llu operation %llx "
        "[%llu,%llu): %d\n",
        message.client, command.member, message.node, static_cast<int>(command.order),
        static_cast<unsigned long long>(command.term),
        static_cast<unsigned long long>(command.session),
        static_cast<unsigned long long>(command.operation),
        static_cast<unsigned long long>(command.range.begin),
        static_cast<unsigned long long>(command.range.end), message.answer.error);
  }
  net_.push_back(std::move(message));
}

/// The data have been read, and arrive later. A member does not wait for them for long.
void MirrorWorld::pull(Message message, const MirrorNode& source) {
  const mirror::Range range = message.command.range;
  mirror::Member& member = *nodes_[message.node].member;
  message.data.assign(source.cached.begin() + static_cast<std::ptrdiff_t>(range.begin),
                      source.cached.begin() + static_cast<std::ptrdiff_t>(range.end));
  message.pull = member.begin_pull();
  net_.push_back(message);
  if (!rng.chance(mood_.slow)) return;
  member.end_pull(message.pull);
  message.answer.error = EOPNOTSUPP;
  message.is_answer = true;
  net_.push_back(std::move(message));
}

void MirrorWorld::fill(MirrorNode& node, bool foreign) {
  node.foreign = foreign;
  node.overwrite = !foreign || rng.chance(300);
  node.cached = node.durable = Values(kMostSectors, foreign ? kForeign : kNothing);
}

/// Nothing lands on data of others, and no group begins beside them, before an operator allows it.
/// Nor does anything land on a disk that was a member and has lost its place.
void MirrorWorld::must_not_destroy(const Message& message) const {
  using mirror::Order;
  const mirror::Command& command = message.command;
  const MirrorClient& client = *clients_[message.client];
  const bool begins = command.order == Order::view && newest().id == mirror::ViewId{};
  const bool changes = command.order == Order::write || command.order == Order::zero ||
                       command.order == Order::copy || command.order == Order::pull ||
                       command.order == Order::clear;
  const auto must_stay = [this](unsigned place) {
    return nodes_[place].foreign && !nodes_[place].overwrite;
  };
  if (begins && std::ranges::any_of(client.names, must_stay))
    throw MirrorViolation("a group begins beside a disk with data of others");
  if (changes && must_stay(message.node)) throw MirrorViolation("data of others are overwritten");
  const std::vector<unsigned>& places = ledger_.entry(message.node).places;
  const bool late = client.astray || command.term < newest().id.term;
  if (!changes || late || places.empty()) return;
  const unsigned rightful = ledger_.holder(command.member);
  const bool was_member = command.member < places.size() && places[command.member] == message.node;
  if (was_member && rightful != kNobody && rightful != message.node)
    throw MirrorViolation("a disk that has lost its place in the group is overwritten");
}

/// The first view after an operator's decision makes the content of its member the right one.
/// Clients that know nothing of it go astray.
void MirrorWorld::viewed(const Message& message) {
  const std::uint64_t term = message.command.view.id.term;
  const MirrorNode& node = nodes_[message.node];
  const std::uint64_t forced = clients_[message.client]->forced;
  if (term != forced || mirror::history_of(term) <= history_) return;
  if (node.member->record().view.id.term != term) return;
  say("the decision for node " + std::to_string(message.node) + " is in force");
  history_ = mirror::history_of(term);
  checker.forced(node.cached, node.durable);
  for (const auto& client : clients_) client->astray = client->number != message.client;
}

int MirrorWorld::carry_out(Message& message) {
  const mirror::Command& command = message.command;
  Values& data = message.data;
  mirror::Answer& answer = message.answer;
  MirrorNode& node = nodes_[message.node];
  mirror::Member& member = *node.member;
  const bool is_beyond = command.range.end * kSectorBytes > member.record().size;
  if (is_beyond && member.serve(command.session) == 0)
    throw MirrorViolation("a member is used beyond the size that it has recorded");
  const auto begin = static_cast<std::ptrdiff_t>(command.range.begin);
  const auto end = static_cast<std::ptrdiff_t>(command.range.end);
  int error = 0;
  switch (command.order) {
    case mirror::Order::claim:
      error = claim(message);
      answer.claimed = over_wire(node.member->claimed(), command.member, options.members);
      answer.claimed.pulls = command.session % 2 == 0;
      return error;
    case mirror::Order::inspect:
      for (std::uint64_t at = 0; at < clients_[message.client]->group.disk_size() / kSectorBytes;
           ++at)
        if (node.cached[at] != kNothing) error = ENOTEMPTY;
      return member.serve(command.session) != 0 ? ESTALE : error;
    case mirror::Order::view:
      error = member.serve(command.session);
      if (error == 0) must_not_destroy(message);
      if (error == 0)
        error =
            member.view(command.session, over_wire(command.view, options.members),
                        over_wire(command.confirmed, options.members), over_wire(command.inherit),
                        over_wire(command.pedigree, options.members), command.size);
      if (error == 0) viewed(message);
      return error;
    case mirror::Order::confirm:
      return member.confirm(command.session, command.view);
    case mirror::Order::beat:
      return member.cool(command.session, {}, command.age, 0);
    case mirror::Order::cool:
      return member.cool(command.session, over_wire(command.regions), command.age,
                         command.age.beat);
    case mirror::Order::echo:
      return member.serve(command.session);
    case mirror::Order::maps:
      answer.maps = over_wire(member.record().maps);
      return member.serve(command.session);
    case mirror::Order::extents:
    case mirror::Order::read:
      data.assign(node.cached.begin() + begin, node.cached.begin() + end);
      if (std::any_of(node.unreadable.begin() + begin, node.unreadable.begin() + end,
                      [](char unreadable) { return unreadable != 0; }))
        error = EIO;
      if (command.order == mirror::Order::extents) error = tell_extents(message, error);
      return member.serve(command.session) != 0 ? ESTALE : error;
    case mirror::Order::flush:
      error = member.serve(command.session);
      if (error == 0) node.durable = node.cached;
      return error;
    case mirror::Order::room:
      if (message.command.member == vote()) throw MirrorViolation("a vote is asked for room");
      answer.room = node.room * kSectorBytes;
      return member.serve(command.session);
    case mirror::Order::grow:
      if (message.command.member == vote()) throw MirrorViolation("a vote is to grow");
      error = claim(message);
      answer.claimed.size = member.record().size;
      return error;
    case mirror::Order::dissolve:
      error = member.dissolve(command.session, command.term);
      if (error == 0) become_plain(message);
      return error;
    case mirror::Order::zero:
    case mirror::Order::clear:
      if (rng.chance(mood_.no_zero))
        return member.serve(command.session) != 0 ? ESTALE : EOPNOTSUPP;
      return change(message, node);
    case mirror::Order::pull:
      if (data.empty()) return member.serve(command.session) != 0 ? ESTALE : EHOSTUNREACH;
      [[fallthrough]];
    case mirror::Order::write:
    case mirror::Order::copy:
      return change(message, node);
  }
  return error;
}

/// A server has no more room than its disk. That of its record may be too small for a larger one.
/// It forgets what it has not recorded.
int MirrorWorld::claim(const Message& message) {
  const mirror::Command& command = message.command;
  MirrorNode& node = nodes_[message.node];
  const unsigned disks = disks_of(*clients_[message.client]);
  if (command.size > node.room * kSectorBytes) return EINVAL;
  if (!node.member->is_of(command.disks)) return EEXIST;
  if (!node.member->may_have(disks) && node.member->is_kept()) return EEXIST;
  if (!node.member->may_have(disks))
    node.member = std::make_unique<mirror::Member>(first_record(node.number), node.epoch);
  const int error = node.member->claim(command.term, command.session);
  if (error != 0) return error;
  if (node.member->record().members != disks) node.member->set_members(disks);
  const std::uint64_t before = node.member->record().size;
  node.member->grow(command.base, command.size, command.view.id);
  const bool grows = command.order == mirror::Order::grow && faults_;
  if (!grows || !refusals_.chance(mood_.unrecorded)) return 0;
  node.member->take_back_growth(before);
  return ENOSPC;
}

/// It has no record any more. Its content is all that there is.
void MirrorWorld::become_plain(const Message& message) {
  const unsigned place = message.node;
  if (message.client != checker.newest())
    throw MirrorViolation("a client that has been superseded dissolves the mirror");
  say("node " + std::to_string(place) + " is a disk of its own");
  if (plain_) throw MirrorViolation("a mirror is dissolved into two disks");
  plain_ = place;
  MirrorNode& node = nodes_[place];
  for (std::uint64_t sector = 0; sector < checker.sectors(); ++sector) {
    checker.at_end(sector, node.cached[sector]);
    checker.at_end(sector, node.durable[sector]);
  }
  ledger_.forget(place);
  node.member = std::make_unique<mirror::Member>(first_record(node.number), node.epoch);
}

/// Replaces the content by what is told of it. `error`: that of the disk.
int MirrorWorld::tell_extents(Message& message, int error) {
  const bool fails = error == 0 && rng.chance(mood_.no_hint);
  if (message.command.operation < mirror::Group::kOwn)
    for (std::uint64_t& value : message.data) value = is_hole(value) && !fails ? kZeroes : kUnknown;
  else if (!fails)
    tell_zeroes(message.data, message.answer);
  return fails ? rng.pick({EINVAL, ENOMEM}) : error;
}

/// Users' changes are logged before.
int MirrorWorld::change(const Message& message, MirrorNode& node) {
  const mirror::Command& command = message.command;
  const auto region = [&](std::uint64_t sector) {
    return static_cast<std::uint32_t>(sector / options.region_sectors);
  };
  const bool logged = command.order == mirror::Order::write || command.order == mirror::Order::zero;
  const int error = node.member->write(command.session, region(command.range.begin),
                                       region(command.range.end - 1), !logged);
  if (error != 0) return error;
  must_not_destroy(message);
  return store(node, command.range, message.data);
}

/// A disk without room refuses what needs some. Of the rest of such a write it takes any part, and
/// other disks another one.
int MirrorWorld::store(MirrorNode& node, mirror::Range range, const Values& data) {
  const auto lacks_room = [&](std::uint64_t sector) {
    const std::uint64_t value = data[sector - range.begin];
    return node.full && is_hole(node.cached[sector]) && value != 0 && value != node.cached[sector];
  };
  bool refused = false;
  for (auto sector = range.begin; sector < range.end; ++sector)
    refused = refused || lacks_room(sector);
  for (auto sector = range.begin; sector < range.end; ++sector) {
    if (refused && (lacks_room(sector) || rng.chance(500))) continue;
    node.cached[sector] = data[sector - range.begin];
    node.unreadable[sector] = 0;
  }
  return refused ? ENOSPC : 0;
}

/// The server that answers at the address of the source. That may be any, also the one that pulls.
const MirrorNode& MirrorWorld::source_of(const Message& message) {
  if (rng.chance(mood_.astray)) return nodes_[rng.below(nodes_.size())];
  return nodes_[clients_[message.client]->names[message.command.source]];
}

/// The source is there, serves the client that gave the order, and is the disk that it means.
bool MirrorWorld::pulls_from(const MirrorNode& source, const Message& message) const {
  const mirror::Command& command = message.command;
  const auto client_of = [](std::uint64_t session) { return session / kSessionsPerClient; };
  const std::uint64_t served = source.member->session();
  if (!source.up || served == 0 || client_of(served) != client_of(command.session)) return false;
  if (source.member->lend(command.disk) != 0) return false;
  for (auto sector = command.range.begin; sector < command.range.end; ++sector)
    if (source.unreadable[sector] != 0) return false;
  return nodes_[message.node].member->serve(command.session) == 0;
}

/// The thread that carries the command does not know yet that its session is over.
void MirrorWorld::fill_late(MirrorClient& client, const Message& message) {
  const std::uint64_t operation = message.command.operation;
  const bool reads = message.command.order == mirror::Order::read && message.answer.error == 0;
  const MirrorClient::Out carried{operation, message.command.member, message.link};
  if (!reads || std::ranges::find(client.out, carried) == client.out.end()) return;
  const auto memory = client.memory.find(operation);
  if (memory == client.memory.end())
    throw MirrorViolation("memory is filled that its user has back");
  memory->second = message.data;
}

void MirrorWorld::receive(const Message& message) {
  MirrorClient& client = *clients_[message.client];
  if (client.dead) return;
  const std::uint64_t operation = message.command.operation;
  if (client.is_late(message.command.member, message.link)) return fill_late(client, message);
  client.collect({operation, message.command.member, message.link});
  const bool shows = message.command.order == mirror::Order::read ||
                     message.command.order == mirror::Order::extents;
  if (shows && operation >= mirror::Group::kOwn)
    client.copies[{operation, message.command.member}] = message.data;
  else if (message.command.order == mirror::Order::extents && client.memory.contains(operation))
    client.memory[operation] = message.data;
  else if (message.command.order == mirror::Order::read && client.memory.contains(operation))
    client.memory[operation] = message.data;
  if (message.answer.error == 0) {
    unsigned& granted = client.granted[message.command.member];
    const bool is_claim = message.command.order == mirror::Order::claim;
    if (is_claim && message.command.member != vote() &&
        std::exchange(granted, message.link) != message.link)
      client.claimed_at = time_;
    std::optional<std::uint64_t>& shown = client.shown[message.command.member];
    shown = std::max(shown.value_or(0), message.sent_at);
    const auto link = [&](unsigned i) { return client.broken[i] == 0 ? client.linked[i] : 0; };
    ledger_.answered(message.client, message.node, message.command, message.told, client.names,
                     link);
  }
  const mirror::MemberSet before = client.group.in_step();
  client.answered(message.answer);
  const bool unknown = mirror::lacks_hint(message.command.order, message.answer.error);
  if (unknown && client.linked[message.command.member] != message.link)
    throw MirrorViolation("a member is lost that had no answer to a hint");
  if (client.group.in_step() == before) return;
  const auto came = static_cast<mirror::MemberSet>(client.group.in_step() & ~before);
  if (mirror::size(came) == 1) recent_ = came;
  if (trace_)
    std::printf("client %u term %llu: in step %x\n", client.number,
                static_cast<unsigned long long>(client.group.term()), client.group.in_step());
}

void MirrorWorld::connect(MirrorClient& client) {
  const auto i = static_cast<unsigned>(rng.below(client.names.size()));
  const MirrorNode& node = nodes_[client.names[i]];
  const bool gives_up = client.cut[i] != 0 && rng.chance(300);
  // A client that has no way to the vote nor to a disk loses the disk first.
  const auto last = client.broken.begin() + disks_of(client);
  if (i == vote() && client.group.live() && std::find(client.broken.begin(), last, 1) != last)
    return;
  if (client.linked[i] != 0 && (client.broken[i] != 0 || gives_up)) {
    end_session(client, i);
  } else if (client.linked[i] == 0 && node.up && client.cut[i] == 0) {
    client.linked[i] = ++client.sessions;
    client.shown[i].reset();
    client.broken[i] = 0;
    client.group.link_up(i, node.overwrite);
  }
}

void MirrorWorld::act(MirrorClient& client) {
  if (rng.chance(mood_.cool)) return client.group.cool();
  if (rng.chance(mood_.verify)) {
    const unsigned source = rng.pick({mirror::kMaxMembers, 0U, disks_of(client) - 1});
    return void(client.group.verify(source));
  }
  if (rng.chance(mood_.request))
    return client.group.live() && !quiet_ && !client.dissolves ? client.submit() : void();
  const std::uint64_t chance = rng.below(100);
  if (chance < 65) return connect(client);
  if (chance < 80) {
    if (!client.group.live() && rng.chance(mood_.wait)) time_ += kLeaseEnd;
    return client.group.hurry();
  }
  client.group.work();
}

void MirrorWorld::heal() {
  say("everything works from now on");
  faults_ = false;
  for (MirrorNode& node : nodes_) {
    node.up = true;
    node.full = false;
    std::fill(node.unreadable.begin(), node.unreadable.end(), 0);
    if (disks_grow()) enlarge(node, kMostSectors);
  }
  free_strangers();
  allow_overwriting();
  wake_up();
  for (const auto& client : clients_) {
    std::fill(client->cut.begin(), client->cut.end(), 0);
    if (client != clients_.back()) client->dead = true;
  }
}

/// Clients that name the server for this member lose it, and do not know that yet.
void MirrorWorld::lose_links(unsigned place, unsigned member) {
  for (const auto& client : clients_)
    if (member < client->names.size() && client->names[member] == place)
      client->broken[member] = client->linked[member] != 0 ? 1 : 0;
}

/// An operator allows it for good. The sessions that were made before do not know that.
void MirrorWorld::allow_overwriting() {
  for (unsigned i = 0; i < nodes_.size(); ++i) {
    const unsigned member = nodes_[i].number;
    if (std::exchange(nodes_[i].overwrite, true)) continue;
    lose_links(i, member);
  }
}

bool MirrorWorld::healed() const {
  const MirrorClient& client = *clients_.back();
  if (client.dead || !client.group.whole()) return false;
  if (!has_grown(client)) return false;
  if (!client.out.empty() || !unsent_.empty()) return false;
  const bool knows_all = std::none_of(client.broken.begin(), client.broken.end(),
                                      [](char broken) { return broken != 0; });
  return knows_all && client.requests.empty() && net_.empty();
}

void MirrorWorld::compare() const {
  for (std::uint64_t sector = 0; sector < clients_.back()->sectors; ++sector) {
    for (unsigned i = 0; i < options.members; ++i) {
      const MirrorNode& node = nodes_[clients_.back()->names[i]];
      if (node.cached[sector] != nodes_[clients_.back()->names.front()].cached[sector])
        throw MirrorViolation("members differ in sector " + std::to_string(sector));
      checker.at_end(sector, node.cached[sector]);
    }
  }
}

}  // namespace sim
