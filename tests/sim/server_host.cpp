// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/server_host.hpp"

#include <algorithm>
#include <utility>

namespace sim {
namespace {

/// How long a session without paths waits for its client.
Duration linger_of(const Knobs& knobs) { return knobs.heartbeat_limit() * 2; }

}  // namespace

ServerHost::ServerHost(HostEnvironment environment, rtrs::ServerSessionOptions options,
                       rtrs::ServerHandler& handler, std::uint64_t serial)
    : environment_{std::move(environment)},
      world_{environment_.world},
      serial_{serial},
      scope_{world_, environment_.server},
      session_{options, handler} {
  session_.peer = std::to_string(serial);
  session_.on_lingering = [this] { on_lingering(); };
  session_.on_gone = [this] {
    linger_.reset();
    environment_.on_gone();
  };
}

ServerPathHost& ServerHost::add_path(PathId path, const rtrs::ServerPathOptions& options) {
  PathEnvironment environment{
      .world = world_,
      .knobs = environment_.knobs,
      .server = environment_.server,
      .client = environment_.client,
      .serial = serial_,
      .admit = [this, path](std::string_view name) { return admit(path, name); },
      .on_connected = [this] { close_older_life(); },
      .have_memory = environment_.have_memory,
      .shared_chunks =
          environment_.knobs.server_style == ServerStyle::own ? nullptr : &shared_chunks_,
      .open_chunks = environment_.open_chunks,
      .on_closing =
          [this, path] {
            close_older_life();
            environment_.on_path_closing(path, session_.over());
            if (session_.has_pending()) judge_later();
          },
      .on_pending = [this] { read_and_judge(); },
      .on_shrunk = [this, path](std::uint64_t held) { environment_.on_path_shrunk(path, held); },
      .on_gone = [this, path] { environment_.on_path_gone(path); }};
  auto host = std::make_unique<ServerPathHost>(std::move(environment), session_, options);
  return *(paths_[path] = std::move(host));
}

void ServerHost::add(const rtrs::Admission::Considered& considered,
                     const rtrs::wire::ConnectParameters& request,
                     const rtrs::ServerPathOptions& options, std::shared_ptr<Wire> wire) {
  const auto known = paths_.find(considered.path);
  if (session_.over() || draining_ || (!considered.new_path && known == paths_.end())) {
    if (considered.new_path) environment_.on_path_gone(considered.path);
    return wire->close(Side::server);
  }
  ServerPathHost& path = considered.new_path ? add_path(considered.path, options) : *known->second;
  path.add(request, std::move(wire));
}

void ServerHost::turn_away(PathId path) {
  const auto found = paths_.find(path);
  if (found == paths_.end()) return;
  if (found->second->connected()) {
    world_.violate("a connection that has only said hello closed a path of a session");
  }
  found->second->close("others came while it had not finished its handshake");
}

rtrs::PathRefusal ServerHost::admit(PathId path, std::string_view name) {
  const rtrs::Admission::Admitted admitted =
      environment_.admit(path, name, paths_.at(path)->user());
  if (admitted.why_not != nullptr) return {admitted.why_not, admitted.error};
  linger_.reset();
  older_life_ = admitted.replaces;
  return {};
}

void ServerHost::close_older_life() {
  const auto old = paths_.find(std::exchange(older_life_, 0));
  if (old != paths_.end()) old->second->close("the client has connected the path again");
}

/// As the shipped host does it. Linux's server carries out what it has read at once.
void ServerHost::read_and_judge() {
  if (environment_.knobs.server_style != ServerStyle::own) return session_.judge_pending();
  const auto judged = session_.read_and_judge([this] {
    return std::ranges::all_of(paths_, [](auto& path) { return path.second->read(); });
  });
  if (judged == rtrs::ServerSession::Judged::later) judge_later();
}

void ServerHost::judge_later() {
  if (std::exchange(judging_later_, true)) return;
  scope_.soon([this] {
    judging_later_ = false;
    if (!session_.gone() && session_.has_pending()) read_and_judge();
  });
}

void ServerHost::on_lingering() {
  if (session_.idle()) environment_.on_idle();
  if (linger_) return;
  world_.note("server", serial_, "session lingers");
  linger_.emplace(world_, environment_.server);
  linger_->after(linger_of(environment_.knobs), [this] { session_.on_linger_expired(); });
}

void ServerHost::drain() {
  draining_ = true;
  session_.end();
  for (auto& [id, path] : paths_) path->drain();
}

void ServerHost::close(const char* why) {
  session_.end();
  for (auto& [id, path] : paths_) path->close(why);
}

}  // namespace sim
