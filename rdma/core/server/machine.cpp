// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/server/machine.hpp"

#include <algorithm>
#include <utility>

namespace rtrs {

using Kind = PathEnd::Kind;

namespace {

/// Heartbeat intervals. Of a connection that tells of nothing, while others of its path do.
constexpr unsigned kLookEvery = 8;

}  // namespace

ServerMachine::ServerMachine(const ServerSessionOptions& session, ServerMachineOptions options,
                             ServerHandler& handler, ServerExecutor& executor)
    : options_{options}, executor_{executor}, session_{session, handler, *this} {}

// ---- Events ------------------------------------------------------------------------------------

void ServerMachine::handle(const ServerEvent& event, Instant now) {
  now_ = now;
  switch (event.kind) {
    case ServerEvent::Kind::others_went:
      judging_later_ = false;
      if (!session_.gone() && session_.has_pending()) read_and_judge();
      return;
    case ServerEvent::Kind::end_all:
      return end_all(event.end);
    case ServerEvent::Kind::drain:
      return drain();
    default:
      if (const auto found = paths_.find(event.path); found != paths_.end()) {
        handle(found->second, event);
      }
  }
}

void ServerMachine::handle(Path& path, const ServerEvent& event) {
  switch (event.kind) {
    case ServerEvent::Kind::serving:
      path.core.start_heartbeat(now_);
      path.deadline_ = now_ + path.core.options().heartbeat_interval;
      return;
    case ServerEvent::Kind::ended:
      return end_connection(path, event.end);
    case ServerEvent::Kind::flushed:
      if (!draining_ || path.core.unanswered() != 0) return;
      return close(path, {.kind = Kind::drained, .answered = true});
    case ServerEvent::Kind::released:
      return session_.on_path_closed(path.core);
    case ServerEvent::Kind::make_room:
      return close(path, {.kind = Kind::makes_room});
    case ServerEvent::Kind::end_path:
      return close(path, event.end);
    default:
      return;
  }
}

void ServerMachine::handle_timeout(Instant now) {
  now_ = now;
  if (linger_until_ && *linger_until_ <= now) {
    linger_until_ = Instant::max();
    executor_.forgotten();
    session_.on_linger_expired();
  }
  for (auto& [id, path] : paths_) {
    if (path.deadline_ <= now) time_out(path);
  }
}

Instant ServerMachine::next_deadline() const {
  Instant next = linger_until_.value_or(Instant::max());
  for (const auto& [id, path] : paths_) next = std::min(next, path.deadline_);
  return next;
}

bool ServerMachine::has_silent_path() const {
  return std::ranges::any_of(paths_, [](const auto& entry) {
    return entry.second.serves() && entry.second.core.silent();
  });
}

void ServerMachine::time_out(Path& path) {
  path.deadline_ = Instant::max();
  if (path.state_ == Path::State::serving) return tick(path);
  if (path.core.state() == ServerPathState::connecting) close(path, {.kind = Kind::late});
}

void ServerMachine::tick(Path& path) {
  const bool was_silent = path.core.silent();
  // A silent client is judged when all that has come from it is read.
  if (was_silent || ++path.ticks_ % kLookEvery == 0) path.executor->look();
  if (!path.open()) return;
  if (path.core.on_tick(now_) == Heartbeat::Verdict::dead) {
    return close(path, {.kind = Kind::silent});
  }
  if (path.core.silent() != was_silent) path.executor->silence(!was_silent);
  if (path.open()) path.deadline_ = now_ + path.core.options().heartbeat_interval;
}

// ---- A path comes ------------------------------------------------------------------------------

bool ServerMachine::takes(PathId path, bool is_new) const {
  if (session_.over() || draining_) return false;
  const Path* const known = find(path);
  return is_new || (known != nullptr && known->open());
}

ServerMachine::Path& ServerMachine::add(PathId id, const ServerPathOptions& options, Instant now) {
  Path& path = paths_.try_emplace(id, *this, id, options).first->second;
  path.deadline_ = now + options_.handshake_timeout;
  return path;
}

const ServerMachine::Path* ServerMachine::find(PathId path) const {
  const auto found = paths_.find(path);
  return found == paths_.end() ? nullptr : &found->second;
}

PathRefusal ServerMachine::admit(Path& path, std::string_view name) {
  const Admission::Admitted admitted = executor_.admit(path.id, name);
  if (admitted.why_not != nullptr) return {admitted.why_not, admitted.error};
  linger_until_.reset();
  older_generation_ = admitted.replaces;
  return {};
}

/// The older path ends when the new one is there, or the session might have no path for a moment.
void ServerMachine::close_older_generation() {
  const auto old = paths_.find(std::exchange(older_generation_, 0));
  if (old != paths_.end()) close(old->second, {.kind = Kind::replaced});
}

// ---- It is read --------------------------------------------------------------------------------

bool ServerMachine::end_reading(Path& path, bool more) {
  path.reading_ = false;
  if (path.fence_) {
    close(path, *std::exchange(path.fence_, std::nullopt));
    return false;
  }
  if (path.state_ == Path::State::shaking_hands &&
      path.core.state() == ServerPathState::connected) {
    path.state_ = Path::State::serving;
    path.executor->serves();
  }
  if (session_.has_pending() && !more) read_and_judge();
  return path.open();
}

/// See ServerSession::has_pending().
void ServerMachine::read_and_judge() {
  if (judging_later_) return;
  const auto judged = session_.read_and_judge([this] {
    return std::ranges::all_of(paths_, [](auto& entry) { return entry.second.executor->read(); });
  });
  if (judged == ServerSession::Judged::later) judge_later();
}

void ServerMachine::judge_later() {
  if (!std::exchange(judging_later_, true)) executor_.let_others_go();
}

// ---- It goes -----------------------------------------------------------------------------------

/// A connection that is in the middle of its progress cannot be closed.
void ServerMachine::on_fenced(Path& path, Complaint why, bool fault) {
  const PathEnd end{.kind = fault ? Kind::broke_rule : Kind::fenced, .why = why};
  if (!path.reading_) return close(path, end);
  path.fence_ = end;
}

/// A client that finds that the server does not have its key leaves without a word.
void ServerMachine::end_connection(Path& path, const PathEnd& end) {
  Complaint why = nullptr;
  if (end.kind == Kind::broken) {
    why = path.core.proofs().refusal();
  } else if (path.core.proofs().needed() && path.core.state() == ServerPathState::connecting) {
    const auth::ServerProof& proof = path.core.proofs().at(end.cid);
    const bool claims = !proof.proven() && !proof.claimed().empty();
    if (claims) why = "it left and did not prove that it has this key";
  }
  if (why == nullptr) return close(path, end);
  close(path, {.kind = Kind::unproven, .why = why, .cid = end.cid});
}

void ServerMachine::close(Path& path, PathEnd end) {
  if (std::exchange(path.state_, Path::State::closed) == Path::State::closed) return;
  path.deadline_ = Instant::max();
  // The way in which it left is no matter then.
  const Complaint refused = path.core.turned_down();
  if (refused != nullptr) {
    end = {.kind = Kind::turned_down, .why = refused, .answered = end.answered};
  }
  close_older_generation();  // an admitted path may find no memory for its chunks
  path.executor->leaves(end, session_.over());
  if (session_.has_pending()) judge_later();  // those pending for this path need not wait any more
  path.core.close();
  path.executor->close();
}

void ServerMachine::end_all(const PathEnd& end) {
  session_.end();
  for (auto& [id, path] : paths_) close(path, end);
}

void ServerMachine::drain() {
  draining_ = true;
  session_.end();
  for (auto& [id, path] : paths_) {
    if (path.open()) path.executor->send_rest();
  }
}

void ServerMachine::on_lingering() {
  if (session_.idle()) executor_.idle();
  if (linger_until_) return;
  linger_until_ = now_ + options_.linger;
  executor_.lingers();
}

void ServerMachine::on_gone() {
  linger_until_.reset();
  executor_.gone();
}

}  // namespace rtrs
