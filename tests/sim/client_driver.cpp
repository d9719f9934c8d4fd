// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/client_driver.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/protocol/messages.hpp"

namespace sim {
namespace {

using rtrs::ClientPathState;

}  // namespace

rtrs::ClientSessionOptions::Path ClientDriver::path_options(const Setup& setup, Rng& rng) {
  const bool rides = !setup.client.linux_like && setup.knobs.server_style == ServerStyle::own;
  return {setup.client.ranked ? static_cast<unsigned>(rng.below(2)) : 0U, false, rides};
}

rtrs::ClientSessionOptions ClientDriver::session_options(const Setup& setup, Rng& rng) {
  const ClientKnobs& client = setup.client;
  rtrs::ClientSessionOptions options;
  options.path.session_name = setup.session_name;
  options.path.io_connections = client.lanes;
  options.path.features = (client.extensions ? rtrs::wire::kFeatureUserMessages : 0U) |
                          (client.exactly_once ? rtrs::wire::kFeatureExactlyOnce : 0U) |
                          (client.access_notices ? rtrs::wire::kFeatureAccessNotice : 0U) |
                          (client.races ? rtrs::wire::kFeatureRaces : 0U) |
                          (client.claims ? rnbd::wire::kFeatureClaims : 0U);
  options.path.authenticates = client.proves;
  options.path.heartbeat_interval = setup.knobs.heartbeat_interval;
  options.path.heartbeat_misses = setup.knobs.heartbeat_misses;
  for (unsigned i = 0; i < client.paths; ++i) options.paths.push_back(path_options(setup, rng));
  options.paths.front().names_server = true;
  options.server_id = setup.server_id;
  options.only_this_server = client.knows_server;
  options.no_path_timeout = client.no_path_timeout;
  options.reconnect_min = client.reconnect_min;
  options.reconnect_max = client.reconnect_max;
  options.settle_time = client.settle_time;
  return options;
}

ClientDriver::ClientDriver(World& world, Network& network, const Setup& setup)
    : world_{world},
      network_{network},
      setup_{setup},
      serial_{network.new_session(setup.node)},
      scope_{world, setup.node},
      keys_{world, /*shared=*/false},
      options_{session_options(setup, world.rng())},
      machine_{options_, [&rng = world.rng()] { return rng.next(); }, setup.recovery != nullptr},
      session_{machine_.session()},
      path_watch_{world, setup.knobs, setup.client, setup.node, who()},
      latency_watch_{world, setup.knobs, setup.node, setup.server, who()},
      paths_(rtrs::kMaxPaths) {
  for (unsigned i = 0; i < options_.paths.size(); ++i) {
    path_watch_.added(i, options_.paths[i].rank);
    paths_[i].elsewhere = i > 0 && draw_elsewhere();
  }
}

bool ClientDriver::draw_elsewhere() {
  return setup_.client.foreign > 0 && world_.rng().chance(setup_.client.foreign);
}

void ClientDriver::later(unsigned path, Duration delay, std::function<void()> action) {
  const unsigned generation = paths_[path].generation;
  scope_.after(delay, [this, path, generation, action = std::move(action)] {
    if (!closed_ && paths_[path].open && paths_[path].generation == generation) action();
  });
}

// ---- The machine's executor ---------------------------------------------------------------------

void ClientDriver::start() {
  world_.note("client", serial_, "connects");
  scope_.after(setup_.knobs.connect_timeout, [this] {
    if (!up_) fail("timed out while connecting");
  });
  look();
}

void ClientDriver::look() {
  if (failing_) return;
  machine_.handle_timeout(world_.now());
  perform_all();
}

void ClientDriver::schedule_look() {
  const Instant next = machine_.next_deadline();
  if (failing_ || std::exchange(look_at_, next) == next) return;
  if (next == Instant::max()) return;
  scope_.after(std::max(Duration::zero(), next - world_.now()), [this, turn = ++looks_] {
    if (turn != looks_) return;
    look_at_ = Instant::max();
    look();
  });
}

void ClientDriver::feed(const rtrs::ClientEvent& event) {
  machine_.handle(event, world_.now());
  perform_all();
}

void ClientDriver::perform_all() {
  if (std::exchange(performing_, true)) return;
  while (const auto action = machine_.poll_action()) {
    if (!failing_) perform(*action);
  }
  performing_ = false;
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    path_watch_.set_distrusted(i, session_.at(i).distrust.active());
  }
  schedule_look();
}

void ClientDriver::perform(const rtrs::ClientAction& action) {
  using Kind = rtrs::ClientAction::Kind;
  const unsigned path = action.path;
  switch (action.kind) {
    case Kind::connect:
      return connect(path, action.generation);
    case Kind::make_lanes:
      return create_lanes(path);
    case Kind::attach:
      return attach(path);
    case Kind::came_up:
      return came_up();
    case Kind::drop:
      return drop(path, action.cause);
    case Kind::close:
      return close_path(path);
    case Kind::recover:
      return recover(path);
    case Kind::break_recovery:
      renewal_->broken = true;
      return renewal_->lane->shut_down(EIO);
    case Kind::acknowledge:
      return acknowledge(path);
    case Kind::say_goodbye:
      session_.path(path).say_goodbye();
      return paths_[path].links[0].queue_pair->flush();
    case Kind::release:
      if (!is_bound(path)) feed({.kind = rtrs::ClientEvent::Kind::released, .path = path});
      return;
    case Kind::notify:
      if (action.notice.kind == rtrs::Notice::Kind::path_distrusted) {
        judge_distrust(action.notice.path);
      }
      if (action.notice.kind == rtrs::Notice::Kind::path_elsewhere) {
        judge_refused(action.notice.path);
      }
      return;
    case Kind::end:
      return fail("the session cannot go on");
    default:
      return perform_on_lanes(action);
  }
}

void ClientDriver::perform_on_lanes(const rtrs::ClientAction& action) {
  using Kind = rtrs::ClientAction::Kind;
  const unsigned path = action.path;
  switch (action.kind) {
    case Kind::use:
      for (auto& lane : lanes_) lane->use(action.paths, setup_.client.policy);
      return;
    case Kind::allow:
      return allow(path);
    case Kind::detach:
      latency_watch_.lost(path);
      for (auto& lane : lanes_) {
        lane->detach(path, world_.now());
        lane->flush();
      }
      return feed({.kind = rtrs::ClientEvent::Kind::busy});
    case Kind::renew:
      latency_watch_.forget();
      for (auto& lane : lanes_) lane->renew();
      return;
    case Kind::put_off:
      for (auto& lane : lanes_) lane->note_pause(action.pause);
      return;
    case Kind::fail_waiting:
      return fail_waiting();
    case Kind::fail_writes:
      return fail_writes(path);
    case Kind::fail_overdue:
      return fail_overdue();
    case Kind::forget:
      for (auto& lane : lanes_) lane->forget(path);
      path_watch_.removed(path);
      return world_.note("client", serial_, "has left path", path);
    default:
      return;
  }
}

// ---- Driving ------------------------------------------------------------------------------------

void ClientDriver::schedule_progress(unsigned index, std::size_t cid) {
  Link& link = paths_[index].links[cid];
  // Without somebody who waits, only the next tick looks at a lane.
  const bool waited_for = cid == 0 || cid >= lanes_.size() || waiters_[cid] > 0;
  const bool connected = session_.at(index).state == rtrs::PathState::connected;
  if (connected && !waited_for && setup_.client.lazy) return;
  if (std::exchange(link.progress_due, true)) return;
  const NetworkKnobs& knobs = setup_.knobs.network;
  const Duration delay =
      world_.rng().delay(0us, knobs.poll_max) * (world_.rng().chance(knobs.slow_poll) ? 100 : 1);
  later(index, delay, [this, index, cid] {
    paths_[index].links[cid].progress_due = false;
    progress(index, cid);
  });
}

void ClientDriver::progress(unsigned index, std::size_t cid) {
  Path& path = paths_[index];
  rtrs::ClientPath& core = session_.path(index);
  SimQueuePair& queue_pair = *path.links[cid].queue_pair;
  rtrs::QueuePairHandler* handler = &core;
  if (cid != 0 && cid < lanes_.size()) handler = &lanes_[cid]->connection(index);
  const bool proving = core.state() == ClientPathState::connecting && core.authenticates();
  if (proving) handler = &core.proofs().at(static_cast<std::uint16_t>(cid));
  const unsigned generation = path.generation;
  const bool was_connected = core.state() == ClientPathState::connected;
  unsigned heard = 0;
  const auto status = queue_pair.progress(*handler, heard);
  if (world_.broken() || closed_ || path.generation != generation || !path.open) return;
  if (proving) return proved(index, cid, status);
  if (cid != 0 && cid < lanes_.size()) lanes_[cid]->note_answer(index, world_.now());
  if (heard > 0 && path.watch) path.watch->heard();
  if (heard > 0 && cid == 0) path.control_heard = world_.now();
  if (core.state() == ClientPathState::connected && !was_connected && !failing_) ready(index);
  if (closed_ || path.generation != generation || !path.open) return;
  if (cid == 0 && core.pulse().measure(world_.now())) {
    for (auto& lane : lanes_) lane->set_latency(index, core.pulse().latency());
  }
  if (cid == 0) look_for_notice(index);
  queue_pair.flush();
  if (cid < lanes_.size()) lanes_[cid]->flush();  // what waited may go over another path
  if (status == SimQueuePair::Status::ended) {
    const rtrs::Complaint complaint = queue_pair.complaint();
    if (complaint != nullptr && core.refusal() == 0) {
      world_.violate(who() + " complains: " + complaint);
    }
    return lose(index, "a connection ended");
  }
  if (status == SimQueuePair::Status::more) schedule_progress(index, cid);
}

void ClientDriver::start(rtrs::Operation& operation, LaneIndex i) {
  ++waiters_[i];
  operation.start(*lanes_[i]);  // may be destroyed already when this returns
  lanes_[i]->flush();
  for (unsigned path = 0; path < paths_.size(); ++path) {
    if (!lanes_[i]->attached(path) || !paths_[path].open) continue;
    if (paths_[path].links[i].queue_pair->has_arrivals()) schedule_progress(path, i);
  }
}

void ClientDriver::cancel(rtrs::Operation& operation, LaneIndex i) {
  give_up(i, [&](rtrs::ClientLane& lane) { operation.cancel(lane); });
  end_wait(i);
}

void ClientDriver::give_up(LaneIndex i, const std::function<void(rtrs::ClientLane&)>& what) {
  const auto set_giving_up = [&](bool on) {
    for (unsigned path = 0; path < paths_.size(); ++path) {
      const bool open = lanes_[i]->attached(path) && paths_[path].open;
      if (open) paths_[path].links[i].queue_pair->set_giving_up(on);
    }
  };
  latency_watch_.forget();
  set_giving_up(true);
  what(*lanes_[i]);
  set_giving_up(false);
}

void ClientDriver::fail_overdue() {
  if (setup_.client.no_path_timeout == Duration::zero()) return;
  const Instant limit = world_.now() - setup_.client.no_path_timeout;
  unsigned mute = 0;
  for (std::size_t i = 1; i < lanes_.size(); ++i) {
    if (!lanes_[i]->overdue(limit)) continue;
    check_overdue();
    world_.note("client", serial_, "fails what paths carry in vain");
    ++give_ups_;
    give_up(i, [&](rtrs::ClientLane& lane) { mute |= lane.fail_overdue(limit, EIO); });
    lanes_[i]->flush();
  }
  if (mute == 0) return;
  feed({.kind = rtrs::ClientEvent::Kind::overdue, .paths = static_cast<rtrs::PathMask>(mute)});
}

void ClientDriver::schedule_tick(unsigned index) {
  const Duration late = world_.rng().delay(0us, setup_.knobs.heartbeat_interval / 20);
  const Duration delay = session_.path(index).pulse().next_deadline() - world_.now() + late;
  later(index, delay, [this, index] {
    if (!failing_) tick(index);
  });
}

void ClientDriver::tick(unsigned index) {
  Path& path = paths_[index];
  const unsigned generation = path.generation;
  bool traffic = false;
  for (std::size_t i = 1; i < lanes_.size() && !path.seen.empty(); ++i) {
    if (path.links[i].queue_pair->has_arrivals()) progress(index, i);
    if (world_.broken() || failing_ || path.generation != generation || !path.open) return;
    const std::uint64_t arrivals = lanes_[i]->connection(index).received();
    traffic |= std::exchange(path.seen[i], arrivals) != arrivals;
  }
  feed({.kind = rtrs::ClientEvent::Kind::awake});
  const bool live = probe(index);
  feed({.kind = rtrs::ClientEvent::Kind::heartbeat, .path = index, .lanes_live = live});
  if (failing_ || path.generation != generation || !path.open) return;
  if (session_.path(index).on_tick(world_.now(), traffic) == rtrs::Heartbeat::Verdict::dead) {
    path.watch->dead(silenced(index));
    return lose(index, "the server is silent");
  }
  schedule_tick(index);
}

/// False when a lane's connection is dead, whatever the others carry.
bool ClientDriver::probe(unsigned index) {
  const unsigned misses_max = session_.misses_max(index);
  check_control(index, misses_max);
  bool live = true;
  for (std::size_t i = 1; i < lanes_.size(); ++i) {
    live &= lanes_[i]->probe(index, misses_max, world_.now());
    lanes_[i]->flush();
  }
  return live;
}

bool ClientDriver::silenced(unsigned index) const {
  for (const Link& link : paths_[index].links) {
    if (link.wire && link.wire->disturbed()) return true;
  }
  return false;
}

// ---- The end of a path --------------------------------------------------------------------------

void ClientDriver::lose(unsigned index, const char* why, const rtrs::Cause& cause) {
  if (failing_ || !paths_[index].open) return;
  world_.note("client", serial_, why, index);
  if (!setup_.client.survives) return fail(why);
  path_watch_.lost(index);
  std::erase_if(copies_, [index](const auto& copy) { return copy.first == index; });
  if (!paths_[index].elsewhere) {
    ++losses_;
    lost_at_ = world_.now();
  }
  in_the_way_ = is_in_the_way(index);
  rtrs::ClientEvent::Traffic traffic;
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    traffic.answered = traffic.answered || lanes_[i]->connection(index).answered();
    traffic.unanswered = traffic.unanswered || lanes_[i]->in_flight(index) > 0;
    if (i > 0) traffic.silence = std::max(traffic.silence, lanes_[i]->connection(index).silence());
  }
  owed_requests_ = traffic.unanswered;
  feed({.kind = rtrs::ClientEvent::Kind::lost,
        .path = index,
        .generation = paths_[index].generation,
        .cause = cause,
        .traffic = traffic});
}

void ClientDriver::drop(unsigned index, const rtrs::Cause& cause) {
  if (cause.kind == rtrs::Cause::Kind::other_server) check_foreign(index);
  if (cause.kind != rtrs::Cause::Kind::unresponsive) return lose(index, "gives up a path", cause);
  later(index, 0us, [this, index, cause] {
    lose(index, "a connection that owes answers carries nothing", cause);
  });
}

/// Its queue pairs may be on the stack.
void ClientDriver::close_path(unsigned index) {
  Path& path = paths_[index];
  path.open = path.ready = false;
  path.watch.reset();
  for (Link& link : path.links) {
    if (!link.queue_pair) continue;
    link.queue_pair->close();
    graveyard_.push_back(std::move(link));
  }
  path.links.clear();
  path.seen.clear();
  scope_.soon([this] { graveyard_.clear(); });
}

void ClientDriver::fail_waiting() {
  const bool before = std::exchange(gave_up_, true);
  world_.note("client", serial_, "gives up waiting for a path");
  if (!before) path_watch_.gave_up();
  latency_watch_.forget();
  ++give_ups_;
  for (auto& lane : lanes_) lane->fail_pending(EIO);
}

void ClientDriver::fail_writes(unsigned index) {
  world_.note("client", serial_, "has waited long enough for path", index);
  path_watch_.gave_up(index);
  latency_watch_.forget();
  ++give_ups_;
  const auto scopes = {&unresolved_, &control_unresolved_};
  for (rtrs::Unresolved* scope : scopes) scope->refuse(EIO);
  for (auto& lane : lanes_) lane->fail_stranded(index, EIO);
  for (rtrs::Unresolved* scope : scopes) {
    if (!scope->writes()) scope->refuse(0);
  }
  for (auto& lane : lanes_) lane->resume();
}

// ---- The end of the session ---------------------------------------------------------------------

void ClientDriver::shut_down(bool orderly) {
  for (unsigned i = 0; orderly && !failing_ && i < paths_.size(); ++i) {
    if (paths_[i].open) session_.path(i).say_goodbye();
  }
  fail("shut down");
}

/// As with threads: it takes a moment until the session closes, and requests may come meanwhile.
void ClientDriver::fail(const char* why) {
  if (std::exchange(failing_, true)) return;
  machine_.end();
  world_.note("client", serial_, why);
  for (Path& path : paths_) path.watch.reset();
  scope_.after(world_.rng().delay(0us, 100us), [this] { close(); });
}

void ClientDriver::close() {
  closed_ = true;
  for (unsigned i = 0; i < paths_.size(); ++i) {
    if (paths_[i].open) close_path(i);
  }
  for (auto& lane : lanes_) lane->shut_down(EIO);
  if (renewal_) renewal_->lane->shut_down(EIO);
  if (on_down) on_down();
}

rtrs::SessionLimits ClientDriver::limits() const {
  const auto& accepted = session_.accepted();
  return {accepted.max_io_size, accepted.queue_depth, accepted.extension.features,
          accepted.extension.volatile_epoch};
}

unsigned ClientDriver::permits_in_use() const {
  unsigned used = 0;
  for (const auto& lane : lanes_) used += lane->permits().in_use();
  return used;
}

unsigned ClientDriver::permits_owing() const {
  unsigned owing = 0;
  for (const auto& lane : lanes_) owing += lane->permits().owing();
  return owing;
}

}  // namespace sim
