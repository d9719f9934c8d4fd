// SPDX-License-Identifier: BSD-3-Clause
// Rules of openings: reservations of disks, and the ends of sessions and of the server's memory of
// them.
#include <algorithm>
#include <string>
#include <utility>

#include "tests/sim/checker.hpp"

namespace sim {

using rnbd::wire::AccessMode;

std::uint64_t Checker::opened(unsigned disk, std::uint64_t session, AccessMode mode, Instant asked,
                              bool fresh, Knows knows) {
  world_.note("checker", session, "open", disk, static_cast<std::uint64_t>(mode), openings_.size());
  const bool certain = !is_gone(session);
  const bool writes = mode != AccessMode::read_only;
  if (fresh && certain) check_writers(disk, session, mode, asked);
  if (writes && !disks_[disk].writable()) {
    world_.violate("disk" + std::to_string(disk) + " is read-only but was opened for writing");
  }
  Opening opening;
  opening.disk = disk;
  opening.session = session;
  opening.mode = mode;
  opening.since = world_.now();
  opening.first_since = opening.since;
  opening.first_asked = asked;
  opening.lost = opening.since;  // if the session is gone already
  opening.held = opening.holds = certain;
  opening.knows = knows;
  opening.life = opening.first_life = life_;
  openings_.push_back(std::move(opening));
  return openings_.size() - 1;
}

void Checker::check_writers(unsigned disk, std::uint64_t session, AccessMode mode, Instant asked) {
  if (mode == AccessMode::read_only) return;
  unsigned writers = 0;  // that were there before this one was asked for
  for (const Opening& other : openings_) {
    const bool there = other.holds && other.disk == disk && other.since < asked;
    if (there && other.mode != AccessMode::read_only) ++writers;
  }
  const unsigned room = mode == AccessMode::migration ? 1 : 0;
  if (writers > room) {
    world_.violate("session " + std::to_string(session) + " opened disk" + std::to_string(disk) +
                   " (" + rnbd::wire::to_string(mode) + ") although " + std::to_string(writers) +
                   " others write to it");
  }
}

void Checker::claimed(std::uint64_t id, Instant asked, const Look& look) {
  Opening& opening = openings_[id];
  world_.note("checker", opening.session, "claims", opening.disk, id);
  if (opening.holds) check_writers(opening.disk, opening.session, AccessMode::read_write, asked);
  opening.mode = AccessMode::read_write;
  opening.since = opening.first_since = world_.now();
  opening.first_asked = asked;
  check_look(opening, look, "claimed");
}

void Checker::shares_claim(std::uint64_t id, const Look& look) {
  world_.note("checker", openings_[id].session, "shares a claim", openings_[id].disk, id);
  check_look(openings_[id], look, "lets a user change");
}

/// Of a life of the server before this one it is only known who came, not when he wrote last.
void Checker::check_look(const Opening& opening, const Look& look, const char* what) {
  for (const auto& [whose, last] : last_writes_) {
    const bool others = whose.first == opening.disk && whose.second != opening.session;
    const bool known = look.life == life_ && last.life == life_;
    if (!others || !known || last.executed <= look.at) continue;
    // A client that stood still hears of its claim when the server has ended its session. The claim
    // was right; a change has to open the disk again first.
    if (!opening.holds && last.executed > opening.lost) continue;
    // The server may have let it write long before the client heard of that, and another one
    // beside.
    if (last.shares && last.executed > opening.first_asked) continue;
    world_.violate("session " + std::to_string(opening.session) + ' ' + what + " disk" +
                   std::to_string(opening.disk) + ", although session " +
                   std::to_string(whose.second) + " has written since the user looked");
  }
}

void Checker::asks_to_write(unsigned slot, std::uint64_t session) {
  if (writers_.size() <= slot) writers_.resize(slot + 1);
  writers_[slot].emplace_back(session, world_.now());
}

void Checker::reopened(std::uint64_t id, Instant asked) {
  Opening& opening = openings_[id];
  world_.note("checker", opening.session, "open again", id);
  // Without the extension the server may have had the session all the time.
  const bool kept = opening.holds;
  opening.holds = !is_gone(opening.session);
  if (opening.holds && !kept) check_writers_again(opening, asked);
  opening.since = world_.now();
  opening.reopened = ++moment_;
  if (opening.power_loss > opening.learnt) opening.learnt = opening.reopened;
  if (opening.holds) opening.life = life_;
  opening.outlived = false;
}

/// Those who had it meanwhile count as much as those who have it now.
void Checker::check_writers_again(Opening& opening, Instant asked) {
  opening.holds = false;
  // Beside one that shared the disk before, or that comes too late and will see it: below.
  const auto as = opening.mode == AccessMode::read_write && opening.knows.writers
                      ? AccessMode::migration
                      : opening.mode;
  check_writers(opening.disk, opening.session, as, asked);
  opening.holds = true;
  if (opening.mode == AccessMode::read_only || !opening.knows.writers) return;
  if (opening.outlived && opening.life == life_) {
    world_.violate("session " + std::to_string(opening.session) + " opened disk" +
                   std::to_string(opening.disk) +
                   " again, although another one went on writing when it was cut off");
  }
  // Over a restart the server knows storage by its UUID.
  const bool forgotten =
      opening.life != life_ && disks_[opening.disk].knobs().uuid == DiskKnobs{}.uuid;
  for (const Opening& other : openings_) {
    const bool wrote = other.disk == opening.disk && other.session != opening.session &&
                       other.held && other.mode != AccessMode::read_only;
    if (!wrote || other.first_since > asked) continue;
    if (forgotten) {
      if (other.life != life_ || other.since > asked) continue;
      return world_.violate("session " + std::to_string(opening.session) + " opened disk" +
                            std::to_string(opening.disk) + " again, although session " +
                            std::to_string(other.session) +
                            " came first to a server that knows of nobody");
    }
    // Two may write while a machine migrates, as long as both are there.
    const bool alone =
        opening.mode == AccessMode::read_write && other.mode == AccessMode::read_write;
    const bool was_there = alone ? other.first_since < opening.since
                                 : other.first_asked < opening.lost || !other.knows.writers;
    if (was_there) continue;
    world_.violate("session " + std::to_string(opening.session) + " opened disk" +
                   std::to_string(opening.disk) + " again, although session " +
                   std::to_string(other.session) + " had it for writing meanwhile");
  }
}

bool Checker::may_be_stale(std::uint64_t id) const {
  const Opening& opening = openings_[id];
  const unsigned slot = disks_[opening.disk].slot();
  if (slot >= writers_.size()) return false;
  return std::ranges::any_of(writers_[slot],
                             [&](const auto& ask) { return ask.first != opening.session; });
}

bool Checker::others_write(const Opening& opening) const {
  return std::ranges::any_of(openings_, [&](const Opening& other) {
    return other.holds && other.disk == opening.disk && other.session != opening.session &&
           other.mode != AccessMode::read_only;
  });
}

void Checker::closing(std::uint64_t opening) {
  world_.note("checker", openings_[opening].session, "closes", opening);
  openings_[opening].closing = true;
  openings_[opening].holds = false;
}

void Checker::closed(std::uint64_t opening) { openings_[opening].closed = true; }

void Checker::session_up(std::uint64_t session) {
  const bool used = session < used_.size() && used_[session];
  const bool renews = session < renews_.size() && renews_[session];
  if ((!used || renews) && is_gone(session)) gone_[session] = false;
  for (const OperationId id : active_) {
    Operation& operation = of(id);
    if (operation.plan.session != session) continue;
    operation.executed_here.assign(operation.executed_here.size(), false);
  }
}

void Checker::resends_at_once(std::uint64_t session) {
  if (resends_.size() <= session) resends_.resize(session + 1);
  resends_[session] = true;
}

bool Checker::may_resend(std::uint64_t session) const {
  return session < resends_.size() && resends_[session];
}

void Checker::renews(std::uint64_t session) {
  if (renews_.size() <= session) renews_.resize(session + 1);
  renews_[session] = true;
}

void Checker::session_gone(std::uint64_t session) {
  if (gone_.size() <= session) gone_.resize(session + 1);
  gone_[session] = true;
  for (Opening& opening : openings_) {
    if (opening.session == session && std::exchange(opening.holds, false)) {
      opening.lost = world_.now();
      opening.outlived = !server_ends_ && others_write(opening);
    }
  }
  std::erase_if(active_, [&](OperationId id) {
    Operation& operation = of(id);
    operation.over = operation.plan.session == session && operation.state == State::abandoned;
    return operation.over;
  });
}

bool Checker::is_gone(std::uint64_t session) const {
  return session < gone_.size() && gone_[session];
}

}  // namespace sim
