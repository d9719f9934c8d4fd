// SPDX-License-Identifier: BSD-3-Clause
// Members of a mirror, and their answers.
#include "bridge/client/mirror/group.hpp"

#include <algorithm>
#include <cerrno>

namespace rnbd::mirror {

Group::Group(const GroupOptions& options, GroupHost& host)
    : options_{options},
      host_{host},
      peers_(options.members),
      next_session_{options.first_session},
      unequal_{options.regions},
      hot_{options.regions},
      touched_{options.regions},
      cooling_{options.regions},
      mending_left_{options.regions} {}

Command& Group::command(Command& command, unsigned member, Order order) {
  command.member = member;
  command.order = order;
  command.session = peers_[member].session;
  command.term = term_;
  return command;
}

void Group::post(Command& command, const Sent& sent) {
  command.tag = next_tag_++;
  sent_[command.tag] = sent;
  host_.send(command);
}

void Group::link_up(unsigned member) {
  if (phase_ == Phase::over) return;
  Peer& peer = peers_[member];
  peer.session = next_session_++;
  peer.stage = Stage::up;
  if (!rise_) claim(member);
}

void Group::claim(unsigned member) {
  peers_[member].stage = Stage::claiming;
  Command order;
  post(command(order, member, Order::claim), {.member = member, .order = Order::claim});
}

void Group::link_down(unsigned member) {
  if (phase_ != Phase::over && peers_[member].stage != Stage::down) lose(member, false);
}

/// The session is over: nothing of it counts any more.
void Group::forget(unsigned member) {
  peers_[member] = Peer{};
  std::erase_if(sent_, [&](const auto& sent) { return sent.second.member == member; });
  for (auto& [id, operation] : operations_) {
    operation.sent = without(operation.sent, member);
    operation.acked = without(operation.acked, member);
  }
  if (!has(cooling_waits_, member)) return;
  // A COOL under way at another member must not overtake newer changes, so this step must end
  // first.
  if (cooling_step_ == Cooling::clearing) return cooled(member);
  cooling_step_ = Cooling::none;
  cooling_waits_ = 0;
}

void Group::lose(unsigned member, bool drop) {
  const bool was_claimed = peers_[member].stage == Stage::claimed;
  const bool was_joining = peers_[member].stage >= Stage::emptying;
  forget(member);
  if (drop) host_.drop(member);
  if (phase_ == Phase::attaching) {
    if (was_claimed) restart();
    return;
  }
  const MemberSet base = pending_.active ? pending_.view.set : in_step_;
  if (has(base, member)) propose(without(base, member), {});
  if (phase_ == Phase::over) return;
  settle_all();
  if (was_joining) start_queued();
  work();
}

Group::Progress Group::progress(unsigned member) const {
  const Peer& peer = peers_[member];
  if (peer.stage == Stage::down) return {};
  if (peer.stage == Stage::in_step) return {Standing::in_step, 0};
  if (peer.stage < Stage::in_step) return {Standing::waiting, 0};
  return {Standing::resync, peer.todo.count()};
}

bool Group::syncs(unsigned member) const { return peers_[member].stage >= Stage::draining; }

MemberSet Group::syncing() const {
  MemberSet set = 0;
  for (unsigned i = 0; i < options_.members; ++i)
    if (syncs(i)) set = with(set, i);
  return set;
}

void Group::answer(const Answer& answer) {
  const auto found = sent_.find(answer.tag);
  if (found == sent_.end() || phase_ == Phase::over) return;
  const Sent sent = found->second;
  sent_.erase(found);
  if (sent.order == Order::claim) return claimed(sent.member, answer);
  if (sent.order == Order::pull) return pulled(sent.operation, sent.member, answer.error);
  const bool unreadable = answer.error == EIO && sent.order == Order::read;
  if (unreadable && phase_ == Phase::live) return read_failed(sent.operation, sent.member);
  if (answer.error != 0) return lose(sent.member, true);
  const auto operation = operations_.find(sent.operation);
  switch (sent.order) {
    case Order::view:
      if (sent.about == kMaxMembers) {
        peers_[sent.member].introduced = true;
        return work();
      }
      if (!pending_.active || pending_.view.id != sent.view) return;
      pending_.acked = with(pending_.acked, sent.member);
      if (within(pending_.view.set, pending_.acked)) commit();
      return;
    case Order::maps:
      return maps(sent.about, sent.member, answer.maps);
    case Order::cool:
      return cooled(sent.member);
    case Order::flush:
      if (operation == operations_.end()) {
        if (sent.about == kMaxMembers) return flushed_for_cooling(sent.member);
        if (phase_ == Phase::attaching) {
          peers_[sent.member].claimed.lost_power = false;
          mending_ = kMaxMembers;
          return try_attach(true);
        }
        return ask(sent.member, Stage::inheriting);
      }
      [[fallthrough]];
    case Order::write:
    case Order::copy:
      if (operation == operations_.end()) return;
      operation->second.acked = with(operation->second.acked, sent.member);
      break;
    case Order::read:
      if (operation == operations_.end()) return;
      operation->second.step = Step::have_data;
      break;
    default:
      return;
  }
  settle(sent.operation);
  work();
}

void Group::claimed(unsigned member, const Answer& answer) {
  Peer& peer = peers_[member];
  if (answer.error != 0) {
    if (answer.error != ESTALE) return lose(member, true);
    peer.stage = Stage::up;
    peer.claimed.promised = answer.claimed.promised;
    if (phase_ == Phase::attaching) return restart();
    rise_ = true;
    return work();
  }
  peer.claimed = answer.claimed;
  peer.stage = Stage::claimed;
  if (phase_ == Phase::attaching) return try_attach(false);
  peer.stage = Stage::draining;  // from now on it gets all writes
  peer.todo = RegionMap{options_.regions};
  // If an operator has forced this member to go on alone, the others lack its later changes.
  for (unsigned k = 0; k < options_.members; ++k)
    if (has(in_step_, k)) peer.todo.add(peer.claimed.maps.dirty[k]);
  peer.pulls = answer.claimed.pulls;
  hot_.add(peer.claimed.maps.active);  // they are cooled there once it has joined
  for (const auto& [id, operation] : operations_)
    if (operation.step == Step::writing) peer.older.push_back(id);
  peer.introduced = peer.claimed.view.id != ViewId{};
  if (!peer.introduced) introduce(member);
  work();
}

}  // namespace rnbd::mirror
