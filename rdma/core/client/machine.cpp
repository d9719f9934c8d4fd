// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/machine.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace rtrs {
namespace {

using Act = ClientAction::Kind;

}  // namespace

// ---- Actions -----------------------------------------------------------------------------------

std::optional<ClientAction> ClientMachine::poll_action() {
  added_ = 0;
  if (actions_.empty()) return std::nullopt;
  ClientAction action = std::move(actions_.front());
  actions_.pop_front();
  if (action.kind == Act::acknowledge) paths_[action.path].noticed = false;
  return action;
}

void ClientMachine::add(ClientAction action) {
  actions_.insert(actions_.begin() + added_++, std::move(action));
}

void ClientMachine::act(Act kind, unsigned path) {
  add({.kind = kind, .path = path, .generation = paths_[path].generation});
}

void ClientMachine::notify(const Notice& notice) { add({.kind = Act::notify, .notice = notice}); }

void ClientMachine::drop(unsigned path, const Cause& cause) {
  add({.kind = Act::drop, .path = path, .generation = paths_[path].generation, .cause = cause});
}

void ClientMachine::end(const Cause& cause) {
  ended_ = true;
  add({.kind = Act::end, .cause = cause});
}

// ---- Events ------------------------------------------------------------------------------------

void ClientMachine::handle(const ClientEvent& event, Instant now) {
  using Kind = ClientEvent::Kind;
  if (ended_) return;
  switch (event.kind) {
    case Kind::awake:
      return note_pause(now);
    case Kind::heartbeat:
      return heartbeat(event.path, event.lanes_live, now);
    case Kind::ready:
      return ready(event.path, now);
    case Kind::lost:
      if (event.generation != paths_[event.path].generation || !paths_[event.path].open) return;
      return lose(event.path, event.cause, event.traffic, now);
    case Kind::access:
      return change_access(event.path, now);
    case Kind::raced:
      return raced(event.raced, now);
    case Kind::overdue:
      return give_up_mute(event.paths, now);
    case Kind::released:
      return released(event.path);
    case Kind::no_permit:
      recovery_.reset();
      return drop(event.path, Cause{Cause::Kind::no_permit, event.path});
    case Kind::recovered:
      return recovered(event.cause.error, now);
    case Kind::busy:
      return session_.was_busy(now);
    case Kind::disconnect:
      return disconnect(event.path, now);
    case Kind::remove:
      return remove(event.path, now);
    case Kind::new_policy:
      in_use_ = 0;
      return apply_use(now);
    case Kind::came_or_goes:
      return handle_timeout(now);
  }
}

void ClientMachine::handle_timeout(Instant now) {
  if (ended_) return;
  note_pause(now);
  while (const auto path = session_.connect_due(now)) connect(*path);
  if (session_.give_up_waiting(now)) {
    notify({.kind = session_.has_path() ? Notice::Kind::requests_inaccessible
                                        : Notice::Kind::requests_fail});
    act(Act::fail_waiting);
  }
  while (const auto path = session_.overdue(now)) act(Act::fail_writes, *path);
  act(Act::fail_overdue);
  apply_use(now);
}

/// An executor that stood still cannot have missed what it did not look for.
void ClientMachine::note_pause(Instant now) {
  if (const auto pause = session_.own_pause(now)) add({.kind = Act::put_off, .pause = *pause});
}

void ClientMachine::heartbeat(unsigned path, bool lanes_live, Instant now) {
  const ClientPath& core = session_.path(path);
  if (lanes_live && core.pulse().control_silence() <= session_.misses_max(path)) {
    session_.lives(path, now);
  } else {
    give_up_mute(static_cast<PathMask>(1U << path), now);
  }
  const PathMask elsewhere = session_.heard(path);
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if ((elsewhere >> i & 1) != 0) notify({.kind = Notice::Kind::path_elsewhere, .path = i});
  }
  act(Act::fail_overdue);
  check_leaving(path);
}

/// Several lanes may find the same path silent. It answers again when it does on all of them.
void ClientMachine::raced(const Raced& raced, Instant now) {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    const SessionPath& path = session_.at(i);
    const bool silent = (raced.silent >> i & 1) != 0;
    const auto since = path.silences.since();
    if (path.state != PathState::connected || silent == since.has_value()) continue;
    if (!silent) {
      session_.answers_again(i);
      notify({.kind = Notice::Kind::path_answers, .path = i, .time = now - *since});
      continue;
    }
    const bool again = session_.fell_silent(i, std::min(raced.since, now), now);
    notify({.kind = Notice::Kind::path_silent,
            .path = i,
            .paths = raced.answers,
            .count = raced.moved,
            .time = now - std::min(raced.since, now)});
    if (again) notify({.kind = Notice::Kind::path_unsteady, .path = i});
  }
  apply_use(now);
}

void ClientMachine::give_up_mute(PathMask paths, Instant now) {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if ((paths >> i & 1) == 0) continue;
    session_.looks_dead(i, now);
    drop(i, Cause{Cause::Kind::unresponsive, i});
  }
}

void ClientMachine::apply_use(Instant now) {
  const PathMask paths = session_.in_use(now);
  if (paths == std::exchange(in_use_, paths)) return;
  add({.kind = Act::use, .paths = paths});
  if (paths == 0 && session_.has_path() && !session_.outages().usable()) {
    notify({.kind = Notice::Kind::paths_inaccessible});
  }
  if (paths != 0) notify({.kind = Notice::Kind::paths_in_use, .paths = paths});
}

// ---- A path comes ------------------------------------------------------------------------------

void ClientMachine::connect(unsigned index) {
  Path& path = paths_[index];
  ++path.generation;
  path.open = true;
  path.held = path.noticed = false;
  session_.begin(index);
  act(Act::connect, index);
}

void ClientMachine::ready(unsigned index, Instant now) {
  using Welcome = ClientSession::Welcome;
  Cause cause{Cause::Kind::none, index};
  switch (session_.judge(index)) {
    case Welcome::first:
      act(Act::make_lanes, index);
      join(index, now);
      return act(Act::came_up);
    case Welcome::joined:
      if (recovery_) break;
      return join(index, now);
    case Welcome::renewed:
      if (recovery_) break;
      return recover(index);
    case Welcome::left:
      notify({.kind = Notice::Kind::path_left, .path = index});
      return act(Act::say_goodbye, index);
    case Welcome::stranger:
      cause.kind = Cause::Kind::other_session;
      return drop(index, cause);
    case Welcome::changed:
      cause.kind = Cause::Kind::other_limits;
      cause.had = session_.accepted();
      cause.has = session_.path(index).accepted();
      return end(cause);
    case Welcome::foreign:
      cause.kind = Cause::Kind::other_server;
      cause.server = session_.path(index).accepted().extension.server_id;
      cause.wanted = session_.server_id();
      return drop(index, cause);
    case Welcome::unfit:
      cause.kind = Cause::Kind::no_extension;
      return drop(index, cause);
  }
  paths_[index].held = true;
}

void ClientMachine::join(unsigned index, Instant now) {
  session_.connected(index, now);
  act(Act::attach, index);
  apply_use(now);
  notify({.kind = Notice::Kind::path_up, .path = index});
  const wire::PathAccess access = session_.path(index).access();
  if (access != wire::PathAccess::optimized) {
    notify({.kind = Notice::Kind::path_better, .path = index, .access = access});
  }
  act(Act::run_background_jobs);
  check_leaving(index);
}

/// The change is acknowledged behind the actions, for the event may come in the midst of others.
/// join() looks at the state of a path that is not connected.
void ClientMachine::change_access(unsigned index, Instant now) {
  if (std::exchange(paths_[index].noticed, true)) return;
  if (session_.at(index).state == PathState::connected) {
    const bool worse = session_.access_changed(index, now);
    notify({.kind = worse ? Notice::Kind::path_worse : Notice::Kind::path_better,
            .path = index,
            .access = session_.path(index).access()});
    act(Act::allow, index);
    apply_use(now);
  }
  act(Act::acknowledge, index);
}

// ---- The server has forgotten the session -------------------------------------------------------

void ClientMachine::recover(unsigned index) {
  if (!recovers_) return end(Cause{Cause::Kind::forgotten, index});
  recovery_ = Recovery{.path = index};
  act(Act::recover, index);
}

void ClientMachine::recovered(int error, Instant now) {
  if (!recovery_) return;
  const auto [index, broken] = *std::exchange(recovery_, std::nullopt);
  if (!broken && error == ESTALE) return end(Cause{Cause::Kind::other_contents, index});
  if (!broken && error == EREMCHG) {
    act(Act::say_goodbye, index);  // what was opened there keeps nobody away
    return drop(index, Cause{Cause::Kind::older_server, index});
  }
  if (!broken && error != 0) return drop(index, Cause{Cause::Kind::not_reopened, index, error});
  if (!broken) {
    act(Act::renew);
    join(index, now);
    notify({.kind = Notice::Kind::session_renewed, .path = index});
  }
  retry_held(now);
}

/// Paths that became ready meanwhile.
void ClientMachine::retry_held(Instant now) {
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (!ended_ && !recovery_ && std::exchange(paths_[i].held, false)) ready(i, now);
  }
}

// ---- A path goes -------------------------------------------------------------------------------

void ClientMachine::lose(unsigned index, const Cause& cause, const ClientEvent::Traffic& traffic,
                         Instant now) {
  const bool was_connected = session_.at(index).state == PathState::connected;
  note_pause(now);
  paths_[index].open = paths_[index].held = false;
  act(Act::close, index);
  if (recovery_ && recovery_->path == index && !std::exchange(recovery_->broken, true)) {
    act(Act::break_recovery);
  }
  const bool in_part = session_.lives_in_part(index, traffic.silence);
  if (was_connected && !cause.by_command() && in_part) {
    session_.distrust(index, now);
    notify({.kind = Notice::Kind::path_distrusted, .path = index});
  }
  const bool in_vain = was_connected && traffic.unanswered && !traffic.answered;
  session_.lost(index, now, cause, in_vain);
  if (cause.kind == Cause::Kind::disconnected) session_.disconnect(index, now);
  if (session_.was_up()) {
    report_end(index, was_connected, cause);
    apply_use(now);  // for requests that go over another path at once
  }
  act(Act::detach, index);
  if (!session_.was_up()) {
    return add({.kind = Act::attempt_failed, .path = index, .cause = cause});
  }
  act(Act::fail_overdue);
  check_leaving(index);
  retry_held(now);
}

/// The end that somebody has asked for is no trouble.
void ClientMachine::report_end(unsigned index, bool was_connected, const Cause& cause) {
  if (!cause.by_command()) {
    notify({.kind = was_connected ? Notice::Kind::path_lost : Notice::Kind::path_unreachable,
            .path = index,
            .cause = cause});
  } else if (was_connected) {
    notify({.kind = Notice::Kind::path_closed, .path = index, .cause = cause});
  }
}

void ClientMachine::disconnect(unsigned index, Instant now) {
  if (paths_[index].open) {
    drop(index, Cause{Cause::Kind::disconnected, index});
  } else {
    session_.disconnect(index, now);
  }
}

void ClientMachine::remove(unsigned index, Instant now) {
  const bool connected = session_.at(index).state == PathState::connected;
  session_.leave(index, now);
  apply_use(now);
  // Linux's server cannot be asked again for the end of a request: it is let finish.
  if (paths_[index].open && (!connected || session_.path(index).exactly_once())) {
    drop(index, Cause{Cause::Kind::removed, index});
  }
  check_leaving(index);
}

void ClientMachine::check_leaving(unsigned index) {
  if (session_.at(index).leaving()) act(Act::release, index);
}

/// Ends a path that is leaving: nothing depends on it any more.
void ClientMachine::released(unsigned index) {
  if (!session_.at(index).exists() || !session_.at(index).leaving()) return;
  if (paths_[index].open) {
    // The path's loss asks again: a request may have taken it in between.
    return drop(index, Cause{Cause::Kind::removed, index});
  }
  act(Act::forget, index);
  session_.remove(index);
  notify({.kind = Notice::Kind::path_removed, .path = index});
}

}  // namespace rtrs
