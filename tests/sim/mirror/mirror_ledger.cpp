// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/mirror/mirror_ledger.hpp"

#include <algorithm>
#include <utility>

namespace sim {
namespace {

using mirror::Order;

void merge(const Moments& from, Moments& into) {
  for (const auto& [place, moment] : from) into[place] = std::max(into[place], moment);
}

/// Group's own, for the activity logs or behind a copy.
bool is_own_flush(const mirror::Command& command) {
  return command.order == Order::flush && command.operation == 0;
}

}  // namespace

void MirrorLedger::begin(mirror::MemberSet in_step) {
  const mirror::View second{{2, 1}, in_step};
  const unsigned members = mirror::size(in_step);
  for (unsigned i = 0; i < members; ++i) {
    MirrorEntry& own = entry(i);
    own.view = own.confirmed = second;
    own.aged = now_;
    own.epoch = 1;
    for (unsigned k = 0; k < members; ++k) {
      own.places.push_back(k);
      own.known[k] = now_;
    }
  }
}

void MirrorLedger::begin_displaced(unsigned place, unsigned member) {
  MirrorEntry own = entry(member);
  own.view.id = own.confirmed.id = {1, 1};
  own.places[member] = place;
  entry(place) = std::move(own);
}

MirrorEntry& MirrorLedger::entry(unsigned place) {
  if (place >= entries_.size()) entries_.resize(place + 1);
  return entries_[place];
}

const MirrorEntry& MirrorLedger::entry(unsigned place) const {
  static const MirrorEntry nothing;
  return place < entries_.size() ? entries_[place] : nothing;
}

MirrorLedger::Client& MirrorLedger::client(unsigned number) {
  if (number >= clients_.size()) clients_.resize(number + 1);
  return clients_[number];
}

/// A new history keeps the places. A member that joins has counted behind its last flush.
void MirrorLedger::propose(Client& client, const mirror::View& view,
                           const std::vector<unsigned>& names) {
  client.proposed = view;
  client.acked = 0;
  client.recorded.clear();
  MirrorTidings& knows = client.knows;
  if (mirror::history_of(view.id.term) > mirror::history_of(knows.view.id.term))
    knows.known.clear();
  knows.view = view;
  knows.places.resize(names.size(), kNobody);
  for (unsigned k = 0; k < names.size(); ++k) {
    if (!mirror::has(view.set, k)) continue;
    knows.places[k] = names[k];
    const auto flushed = client.flushed.find(names[k]);
    const bool joins = client.live && !mirror::has(knows.confirmed.set, k);
    if (joins && flushed != client.flushed.end()) merge({*flushed}, knows.known);
  }
}

MirrorTidings MirrorLedger::sent(unsigned number, const mirror::Command& command,
                                 const std::vector<unsigned>& names) {
  Client& client = this->client(number);
  MirrorTidings told;
  if (command.order == Order::claim && command.term > client.term) {
    client.term = command.term;
    client.proposed = {};
    if (!client.live) client.knows = {};
    return told;
  }
  if (command.order != Order::view && command.order != Order::cool) return told;
  // A new member is told of the view that is there.
  if (command.order == Order::view && command.view.id > client.knows.view.id)
    propose(client, command.view, names);
  told = client.knows;
  told.known.clear();
  const bool cools = command.order == Order::cool;
  const mirror::MemberSet about = cools ? client.knows.confirmed.set : client.knows.view.set;
  const Moments& known = cools ? client.flushed : client.knows.known;
  for (unsigned k = 0; k < names.size(); ++k)
    if (const auto moment = known.find(names[k]); mirror::has(about, k) && moment != known.end())
      told.known.insert(*moment);
  return told;
}

MirrorTidings MirrorLedger::carried_out(unsigned place, const mirror::Command& command,
                                        const MirrorTidings& told, std::uint64_t epoch) {
  MirrorEntry& own = entry(place);
  if (command.order == Order::claim) return own;
  if (is_own_flush(command)) {
    own.aged = ++now_;
    return {.known = {{place, now_}}};
  }
  if (command.order == Order::cool && !command.regions.empty()) merge(told.known, own.known);
  if (command.order != Order::view) return {};
  const mirror::View& view = command.view;
  if (view.id <= own.view.id) return {.known = {{place, own.aged}}};
  if (mirror::history_of(view.id.term) > mirror::history_of(own.view.id.term)) own.known.clear();
  own.view = view;
  own.places = told.places;
  own.aged = ++now_;
  for (const auto& [known, moment] : told.known) own.known[known] = moment;
  own.known[place] = now_;
  const mirror::View& confirmed = mirror::size(view.set) == 1 ? view : told.confirmed;
  if (confirmed.id > own.confirmed.id) own.confirmed = confirmed;
  if (mirror::has(view.set, command.member)) own.epoch = epoch;
  return {.known = {{place, now_}}};
}

/// A client that attaches knows what the newest record says, and of each member what it says
/// itself.
void MirrorLedger::claimed(Client& client, const mirror::Command& command, unsigned place,
                           const MirrorTidings& told) const {
  if (command.term != client.term) return;
  MirrorTidings& knows = client.knows;
  if (const auto own = told.known.find(place); own != told.known.end())
    knows.known[place] = own->second;
  if (client.live || client.proposed.set != 0) return;
  if (told.confirmed.id > knows.confirmed.id) knows.confirmed = told.confirmed;
  if (told.view.id < knows.view.id) return;
  knows.view = told.view;
  knows.places = told.places;
}

void MirrorLedger::answered(unsigned number, unsigned place, const mirror::Command& command,
                            const MirrorTidings& told, const std::vector<unsigned>& names,
                            const std::function<unsigned(unsigned member)>& link) {
  Client& client = this->client(number);
  if (command.order == Order::claim) claimed(client, command, place, told);
  if (is_own_flush(command)) merge(told.known, client.flushed);
  const bool cools = command.order == Order::cool && !command.regions.empty();
  if (cools && command.age.view == client.knows.view.id) tell_vote(number, names, link);
  const bool awaited = mirror::has(client.proposed.set, command.member) &&
                       !mirror::within(client.proposed.set, client.acked);
  if (command.order != Order::view || command.view.id != client.proposed.id || !awaited) return;
  client.acked = mirror::with(client.acked, command.member);
  merge(told.known, client.recorded);
  if (mirror::within(client.proposed.set, client.acked)) come_into_force(number, names, link);
}

void MirrorLedger::come_into_force(unsigned number, const std::vector<unsigned>& names,
                                   const std::function<unsigned(unsigned member)>& link) {
  Client& client = this->client(number);
  client.live = true;
  client.knows.confirmed = client.proposed;
  merge(client.recorded, client.knows.known);
  MirrorTidings told = client.knows;
  told.known = client.recorded;
  for (unsigned k = 0; k < names.size(); ++k)
    if (mirror::has(client.proposed.set, k) && link(k) != 0)
      debts_.push_back({number, k, names[k], link(k), told});
}

/// Logs are cleared, so all disks of the view have come as far as they have flushed.
void MirrorLedger::tell_vote(unsigned number, const std::vector<unsigned>& names,
                             const std::function<unsigned(unsigned member)>& link) {
  const Client& client = this->client(number);
  if (!vote_ || !mirror::has(client.knows.confirmed.set, *vote_) || link(*vote_) == 0) return;
  MirrorTidings told = client.knows;
  told.known.clear();
  for (unsigned k = 0; k < names.size(); ++k)
    if (const auto moment = client.flushed.find(names[k]); moment != client.flushed.end())
      if (mirror::has(told.confirmed.set, k)) told.known.insert(*moment);
  debts_.push_back({number, *vote_, names[*vote_], link(*vote_), told});
}

/// A member that has recorded a newer view since was told by that.
void MirrorLedger::settle(const std::function<Way(const Debt& debt)>& way) {
  std::erase_if(debts_, [&](const Debt& debt) {
    const Way gone = way(debt);
    MirrorEntry& own = entry(debt.place);
    if (gone == Way::arrived && own.view.id == debt.told.view.id) {
      own.confirmed = debt.told.confirmed;
      merge(debt.told.known, own.known);
    }
    return gone != Way::under_way;
  });
}

void MirrorLedger::lost(unsigned place) {
  std::erase_if(debts_, [place](const Debt& debt) { return debt.place == place; });
}

void MirrorLedger::lost_by(unsigned client) {
  std::erase_if(debts_, [client](const Debt& debt) { return debt.client == client; });
}

const mirror::View& MirrorLedger::newest() const {
  static const mirror::View none;
  const mirror::View* newest = &none;
  for (const MirrorEntry& each : entries_)
    if (each.view.id > newest->id) newest = &each.view;
  return *newest;
}

unsigned MirrorLedger::holder(unsigned member) const {
  const mirror::ViewId last = newest().id;
  for (const MirrorEntry& each : entries_)
    if (each.view.id == last && member < each.places.size()) return each.places[member];
  return kNobody;
}

bool MirrorLedger::settled() const {
  const mirror::View& last = newest();
  for (unsigned k = 0; last.set >> k != 0; ++k)
    if (mirror::has(last.set, k) && entry(holder(k)).view.id != last.id) return false;
  return true;
}

mirror::View MirrorLedger::confirmed_without(unsigned place) const {
  mirror::View confirmed;
  for (unsigned i = 0; i < entries_.size(); ++i)
    if (i != place && entries_[i].confirmed.id > confirmed.id) confirmed = entries_[i].confirmed;
  return confirmed;
}

}  // namespace sim
