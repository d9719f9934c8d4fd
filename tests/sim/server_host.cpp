// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/server_host.hpp"

#include <algorithm>
#include <utility>

namespace sim {
namespace {

/// How long a session without paths waits for its client.
Duration linger_of(const Knobs& knobs) { return knobs.heartbeat_limit() * 2; }

}  // namespace

ServerHost::ServerHost(HostEnvironment environment, const rtrs::ServerSessionOptions& options,
                       rtrs::ServerHandler& handler, std::uint64_t serial)
    : environment_{std::move(environment)},
      world_{environment_.world},
      serial_{serial},
      scope_{world_, environment_.server},
      machine_{options,
               {.handshake_timeout = environment_.knobs.handshake_timeout,
                .linger = linger_of(environment_.knobs)},
               handler,
               *this} {
  machine_.session().peer = std::to_string(serial);
}

void ServerHost::report(const rtrs::ServerEvent& event) {
  machine_.handle(event, world_.now());
  set_timer();
}

/// A timer may be late, by a part of a heartbeat's interval.
void ServerHost::set_timer() {
  const Instant due = machine_.next_deadline();
  if (due == std::exchange(timer_at_, due)) return;
  timer_.reset();
  if (due == Instant::max()) return;
  const Duration late = world_.rng().delay(0us, environment_.knobs.heartbeat_interval / 20);
  timer_.emplace(world_, environment_.server);
  timer_->after(std::max(due - world_.now(), Duration::zero()) + late, [this] {
    timer_at_ = Instant::max();
    machine_.handle_timeout(world_.now());
    set_timer();
  });
}

ServerPathHost& ServerHost::add_path(PathId path, const rtrs::ServerPathOptions& options) {
  PathEnvironment environment{
      .world = world_,
      .knobs = environment_.knobs,
      .server = environment_.server,
      .client = environment_.client,
      .serial = serial_,
      .report = [this](const rtrs::ServerEvent& event) { report(event); },
      .have_memory = environment_.have_memory,
      .shared_chunks =
          environment_.knobs.server_style == ServerStyle::own ? nullptr : &shared_chunks_,
      .open_chunks = environment_.open_chunks,
      .on_closing = [this, path](bool over) { environment_.on_path_closing(path, over); },
      .on_shrunk = [this, path](std::uint64_t held) { environment_.on_path_shrunk(path, held); },
      .on_silent = [this, path](bool silent) { environment_.on_path_silent(path, silent); },
      .check_loans = environment_.check_loans,
      .on_gone = [this, path] { environment_.on_path_gone(path); }};
  rtrs::ServerMachine::Path& place = machine_.add(path, options, world_.now());
  set_timer();
  auto host = std::make_unique<ServerPathHost>(std::move(environment), machine_, place);
  return *(paths_[path] = std::move(host));
}

void ServerHost::add(const rtrs::Admission::Considered& considered,
                     const rtrs::wire::ConnectParameters& request,
                     const rtrs::ServerPathOptions& options, std::shared_ptr<Wire> wire) {
  if (!machine_.takes(considered.path, considered.new_path)) {
    if (considered.new_path) environment_.on_path_gone(considered.path);
    return wire->close(Side::server);
  }
  ServerPathHost& path =
      considered.new_path ? add_path(considered.path, options) : *paths_.at(considered.path);
  path.add(request, std::move(wire));
}

/// Nothing comes over one that is silent, nor over one that its client connects anew. An attempt
/// that makes room for others is over, though its end comes from a later event.
bool ServerHost::may_carry(PathId id) const {
  const auto* const path = machine_.find(id);
  const bool comes_back = std::ranges::any_of(paths_, [&](const auto& entry) {
    const auto* const other = machine_.find(entry.first);
    return entry.first > id && other->core.options().uuid == path->core.options().uuid &&
           other->open() && other->core.state() == rtrs::ServerPathState::connecting &&
           !environment_.is_turned_away(entry.first);
  });
  const bool inaccessible = options().tells_access() &&
                            path->core.notices().access() == rtrs::wire::PathAccess::inaccessible;
  return !comes_back && !inaccessible && !path->core.silent();
}

std::size_t ServerHost::carrying(const rtrs::wire::Uuid& without) const {
  return static_cast<std::size_t>(std::ranges::count_if(paths_, [&](const auto& entry) {
    const auto* const path = machine_.find(entry.first);
    return path->core.options().uuid != without && path->open() &&
           path->core.state() == rtrs::ServerPathState::connected && may_carry(entry.first);
  }));
}

bool ServerHost::serves(const rtrs::wire::Uuid& without) const {
  return std::ranges::any_of(paths_, [&](const auto& entry) {
    const auto* const path = machine_.find(entry.first);
    return path->core.options().uuid != without && path->open() &&
           path->core.state() == rtrs::ServerPathState::connected;
  });
}

void ServerHost::turn_away(PathId path) {
  const auto* const found = machine_.find(path);
  if (found != nullptr && found->core.state() == rtrs::ServerPathState::connected) {
    world_.violate("a connection that has only said hello closed a path of a session");
  }
  report({.kind = rtrs::ServerEvent::Kind::make_room, .path = path});
}

void ServerHost::forget(PathId path) {
  paths_.erase(path);
  machine_.forget(path);
}

rtrs::Admission::Admitted ServerHost::admit(PathId path, std::string_view name) {
  ServerPathHost& host = *paths_.at(path);
  rtrs::Admission::Admitted admitted = environment_.admit(path, name, host.user());
  if (admitted.why_not != nullptr) host.refuse();
  // Linux's server closes the path.
  if (environment_.knobs.server_style != ServerStyle::own) admitted.error = 0;
  return admitted;
}

std::uint64_t ServerHost::lent() const {
  std::uint64_t sum = 0;
  for (const auto& [id, host] : paths_) sum += machine_.find(id)->core.loan().lent();
  return sum;
}

void ServerHost::check_loans() {
  for (const auto& [id, host] : paths_) host->check_loan();
}

void ServerHost::let_others_go() {
  scope_.soon([this] { report({.kind = rtrs::ServerEvent::Kind::others_went}); });
}

void ServerHost::drain() {
  for (auto& [id, path] : paths_) path->stop_watching();
  report({.kind = rtrs::ServerEvent::Kind::drain});
}

void ServerHost::close(const char* why) {
  report({.kind = rtrs::ServerEvent::Kind::end_all,
          .end = {.kind = rtrs::PathEnd::Kind::command, .text = why}});
}

}  // namespace sim
