// SPDX-License-Identifier: BSD-3-Clause
// How a path of the simulated client comes: its connections, and what it leads to.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "rdma/wire/immediate.hpp"
#include "tests/sim/client_driver.hpp"
#include "tests/sim/proofs.hpp"

namespace sim {
void ClientDriver::connect(unsigned index, unsigned generation) {
  Path& path = paths_[index];
  path.generation = generation;
  path.open = true;
  path.ready = path.noticed = false;
  if (path.refused && session_.path(index).may_begin()) {
    world_.violate(who() + " would go on at a clone of its server");
  }
  path.links = std::vector<Link>(session_.path(index).connection_count());
  // Somebody answers in the server's place, to whom its number means nothing yet.
  if (std::exchange(path.hijacked, false)) path.elsewhere = false;
  if (!up_ && !path.elsewhere && options_.server_id == 0 && draw_impostor()) {
    path.hijacked = path.elsewhere = true;
  }
  // A session that it may make would be the impostor's.
  path.impostor = up_ && !session_.path(index).may_begin() && draw_impostor();
  connect_next(index);
}

void ClientDriver::connect_next(unsigned index) {
  Path& path = paths_[index];
  std::uint16_t cid = 0;
  while (cid < path.links.size() && path.links[cid].queue_pair) ++cid;
  const unsigned step = ++path.step;
  later(index, setup_.knobs.connect_timeout, [this, index, step] {
    if (up_ && !paths_[index].ready && paths_[index].step == step) {
      lose(index, "too slow", {ETIMEDOUT, "it takes too long"});
    }
  });
  if (cid == path.links.size()) {
    const rtrs::ClientPath& core = session_.path(index);
    if (core.authenticates() && !core.proofs().all_proven()) return;
    return session_.path(index).start_exchange(*path.links[0].queue_pair);
  }
  Link& link = path.links[cid];
  link.wire = network_.open(serial_, index, cid, path.elsewhere);
  if (setup_.client.resends_at_once) link.wire->set_prompt();
  if (path.elsewhere && cid == 0 && session_.path(index).may_begin() && may_be_welcome()) {
    link.wire->set_welcome();
  }
  link.queue_pair = std::make_unique<SimQueuePair>(
      link.wire, Side::client, keys_,
      SimQueuePair::Options{.node = setup_.node,
                            .linux_like = setup_.client.linux_like,
                            .resends_at_once = setup_.client.resends_at_once});
  link.queue_pair->on_ready = [this, index, cid] { schedule_progress(index, cid); };
  link.queue_pair->on_record = [this, index, cid](rtrs::ConstBytes record) {
    answered(index, cid, record);
  };
  link.queue_pair->on_request = [this, index, cid](std::uint32_t immediate) {
    requested(index, cid, immediate);
  };
  link.queue_pair->on_answer = [this, index](std::uint32_t immediate) {
    const std::uint32_t permit = rtrs::wire::decode_response(immediate).buffer_id;
    path_watch_.answered(index);
    latency_watch_.answered(index, permit);
    copies_.erase({index, permit});
  };
  const auto request = session_.path(index).connect_request(cid);
  link.queue_pair->send_record(rtrs::wire::bytes_of(request));
}

/// Nobody goes on at the clone without being seen: neither a session that begins, nor one whose
/// devices tell nothing of it.
bool ClientDriver::may_be_welcome() const {
  return setup_.knobs.clone_answers && setup_.recovery != nullptr && up_ && exactly_once() &&
         setup_.knows_clone();
}

void ClientDriver::requested(unsigned index, std::uint16_t cid, std::uint32_t immediate) {
  const std::uint32_t depth = session_.path(index).accepted().queue_depth;
  const std::uint32_t permit = rtrs::wire::decode_request(immediate, depth).buffer_id;
  // A permit does not go where it owes an answer, be that the best path or not.
  const bool owes = std::ranges::any_of(
      copies_, [&](const auto& copy) { return copy.second == permit && copy.first != index; });
  unsigned& been_on = been_on_[permit];
  been_on = (owes ? been_on : 0U) | 1U << index;
  if (in_race_) {
    sent_in_race_.push_back({index, permit, owes, been_on});
  } else if (!failing_) {  // else nobody looks after the paths any more
    path_watch_.requested(index, cid, owes);
  }
  if (cid == 0) return;
  latency_watch_.requested(index, permit);
  if (!copies_.insert({index, permit}).second) {
    world_.violate(who() + " sends a request with a permit that owes an answer on this path");
  }
}

void ClientDriver::answered(unsigned index, std::uint16_t cid, rtrs::ConstBytes record) {
  if (failing_ || !paths_[index].open) return;
  rtrs::ClientPath& core = session_.path(index);
  if (rtrs::Complaint complaint = core.on_answer(cid, record)) {
    if (core.foreign() && !paths_[index].elsewhere) check_foreign(index);
    if (core.refusal() == 0 && !core.foreign()) world_.violate(who() + " complains: " + complaint);
    // From a later event: the queue pair is on the stack.
    return later(index, 0us, [this, index] { lose(index, "refused"); });
  }
  if (cid == 0) note_accept(index, record);
  if (core.authenticates()) start_proof(index, cid);
  connect_next(index);
}

/// Now and then somebody with another key tries to get into the session.
bool ClientDriver::draw_impostor() {
  constexpr unsigned kMost = 4;
  if (setup_.client.impostor == 0 || impostors_ >= kMost) return false;
  const bool drawn = world_.rng().chance(setup_.client.impostor);
  if (drawn) ++impostors_;
  return drawn;
}

void ClientDriver::start_proof(unsigned index, std::uint16_t cid) {
  Path& path = paths_[index];
  const bool impostor = path.impostor || (cid > 0 && draw_impostor());
  if (impostor) path.links[cid].wire->set_impostor();
  const std::string user = impostor ? kOtherUser : user_of(setup_.node);
  const Secret& secret = secrets_.try_emplace(user, secret_of(user, false)).first->second;
  session_.path(index).start_proof(cid, *path.links[cid].queue_pair,
                                   {user, rtrs::wire::bytes_of(secret)}, draw_nonce(world_.rng()));
}

void ClientDriver::proved(unsigned index, std::size_t cid, SimQueuePair::Status status) {
  Path& path = paths_[index];
  rtrs::ClientPath& core = session_.path(index);
  SimQueuePair& queue_pair = *path.links[cid].queue_pair;
  queue_pair.flush();
  const auto& proof = core.proofs().at(static_cast<std::uint16_t>(cid));
  if (proof.proven() && path.elsewhere && !setup_.knobs.clone) {
    return world_.violate(who() + " takes a server for its own that has other keys");
  }
  if (status == SimQueuePair::Status::ended) {
    const rtrs::Complaint complaint = queue_pair.complaint();
    if (complaint != nullptr && !(path.elsewhere && proof.refusal() != 0)) {
      world_.violate(who() + " complains: " + complaint);
    }
    return lose(index, "a connection ended");
  }
  if (status == SimQueuePair::Status::more) schedule_progress(index, cid);
  if (core.proofs().all_proven()) connect_next(index);
}

void ClientDriver::ready(unsigned index) {
  paths_[index].watch.emplace(world_, setup_.knobs, who(), setup_.node, setup_.server);
  session_.path(index).pulse().start(world_.now());
  schedule_tick(index);
  paths_[index].ready = true;
  feed({.kind = rtrs::ClientEvent::Kind::ready, .path = index});
}

/// Nobody is sent away who leads to the server that it must be.
void ClientDriver::check_foreign(unsigned index) {
  const bool changes = setup_.knobs.identity == Identity::per_process;
  if (paths_[index].elsewhere || changes) return;
  world_.violate(who() + " takes its server for another one");
}

/// A path is found to lead to another server, while the session's own lives.
void ClientDriver::judge_refused(unsigned index) {
  world_.note("client", serial_, "knows that a path leads elsewhere", index);
  if (paths_[index].elsewhere) {
    paths_[index].refused = true;
  } else {
    world_.violate(who() + " takes its server for a clone of it");
  }
}

void ClientDriver::create_lanes(unsigned index) {
  for (rtrs::Unresolved* scope : {&unresolved_, &control_unresolved_}) {
    scope->on_end = [this, scope] {
      scope_.soon([this, scope] {
        if (closed_) return;
        if (!scope->writes()) scope->refuse(0);
        for (auto& lane : lanes_) {
          lane->resume();
          lane->flush();
        }
      });
    };
  }
  const auto slots = session_.path(index).slots_per_lane();
  std::uint16_t first = 0;
  for (std::uint16_t cid = 0; cid < slots.size(); ++cid) {
    if (cid != 0 && slots[cid] == 0) break;
    rtrs::Unresolved* scope = cid == 0 ? &control_unresolved_ : &unresolved_;
    rtrs::Unresolved* opens = cid == 0 ? nullptr : &control_unresolved_;
    lanes_.push_back(std::make_unique<rtrs::ClientLane>(first, slots[cid], scope, opens));
    first = static_cast<std::uint16_t>(first + slots[cid]);
  }
  lanes_[0]->keep_order();
  waiters_.resize(lanes_.size());
  silent_.resize(lanes_.size());
}

void ClientDriver::attach(unsigned index) {
  Path& path = paths_[index];
  const auto access = path.links[0].queue_pair->notice().value_or(path.access);
  path_watch_.joined(index, access, access != kInaccessible || !path.tells_access);
  path.seen.assign(lanes_.size(), 0);
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    path.seen[i] = lanes_[i]->connection(index).received();
  session_.path(index).set_control_handler(&lanes_[0]->connection(index));
  end_giving_up();
  forbid_requests(index);
  for (std::uint16_t cid = 0; cid < lanes_.size(); ++cid) {
    session_.path(index).attach(*lanes_[cid], index, cid, *path.links[cid].queue_pair);
    lanes_[cid]->flush();
  }
}

void ClientDriver::came_up() {
  up_ = true;
  schedule_races();
  world_.note("client", serial_, "is up", session_.accepted().queue_depth, lanes_.size());
  if (on_up) on_up();
}

}  // namespace sim
