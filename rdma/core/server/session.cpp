// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/server/session.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rdma/core/server/path.hpp"
#include "rdma/wire/ensure.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {

namespace {

/// The number of times that all paths are read before others get a turn.
constexpr unsigned kMaxRounds = 3;

}  // namespace

using State = ServerRequest::State;

void ServerRequest::finish(int error) { session->finish(*this, error); }

bool ServerRequest::may_send_from_anywhere() const {
  const QueuePair* const queue_pair = path->connections_[cid].queue_pair;
  return queue_pair != nullptr && queue_pair->sends_from_anywhere();
}

void ServerRequest::expect_next(MutableBytes memory) { path->expect_next(*this, memory); }

ServerSession::ServerSession(ServerSessionOptions options, ServerHandler& handler,
                             ServerSessionOwner& owner)
    : options_{options}, handler_{handler}, owner_{owner} {
  RTRS_ENSURE(wire::fits_immediate(options.queue_depth, options.chunk_size()));
}

ServerSession::~ServerSession() { RTRS_ENSURE(executing_ == 0 && paths_.empty()); }

// ---- Paths --------------------------------------------------------------------------------------

void ServerSession::join(ServerPath& path) { paths_.push_back(&path); }

void ServerSession::leave(ServerPath& path) { std::erase(paths_, &path); }

/// One that has not finished its handshake may be a stranger's: it does not keep a session that
/// lingers.
bool ServerSession::has_live_path() const {
  const bool half_open_counts = !lingers();
  return std::ranges::any_of(paths_, [=](const ServerPath* path) {
    if (path->is_memory()) return false;
    return path->state() == ServerPathState::connected ||
           (half_open_counts && path->state() == ServerPathState::connecting);
  });
}

unsigned ServerSession::connected_paths() const {
  return static_cast<unsigned>(std::ranges::count_if(paths_, [](const ServerPath* path) {
    return !path->is_memory() && path->state() == ServerPathState::connected;
  }));
}

void ServerSession::up() {
  linger_expired_ = false;
  if (up_) return;
  slots_.resize(options_.queue_depth);
  context = handler_.on_session_up(*this);
  up_ = true;  // only now: the handler may have lacked memory
}

std::vector<SessionItem> ServerSession::items() {
  return up_ ? handler_.items(*this) : std::vector<SessionItem>{};
}

void ServerSession::on_path_closed(ServerPath& path) {
  RTRS_ENSURE(path.state() == ServerPathState::closed);
  path.release();
  const bool was_connected = !path.requests_.empty();
  if (up_ && was_connected) handler_.on_paths_changed(*this);
  if (up_ && path.told_of_memory_) handler_.on_memory_path_down(*this, path.options().uuid);
  send_recall();
  check_gone();
}

void ServerSession::set_access(unsigned entrance, wire::PathAccess access) {
  for (ServerPath* path : paths_) {
    if (path->options().entrance == entrance) path->set_access(access);
  }
}

void ServerSession::let_go(ConstBytes memory) {
  for (ServerPath* path : paths_) path->let_go(memory);
}

bool ServerSession::revoke(const wire::Uuid& memory_path) {
  const auto found = std::ranges::find_if(paths_, [&](const ServerPath* path) {
    return path->is_memory() && !path->released_ && path->options().uuid == memory_path;
  });
  if (found == paths_.end()) return false;
  (*found)->fence("its client has revoked the memory path", /*fault=*/false);
  return true;
}

bool ServerSession::recall() {
  if (!options_.has_memory_paths()) return false;
  ++recalls_;
  send_recall();
  return true;
}

/// Over one path at a time: another one is tried when that is lost.
void ServerSession::send_recall() {
  if (recalls_heard_ == recalls_) return;
  const auto tells = [](const ServerPath* path) {
    return path->state() == ServerPathState::connected && path->notices_.recall_unanswered();
  };
  if (std::ranges::any_of(paths_, tells)) return;
  const auto free = std::ranges::find_if(paths_, &ServerPath::may_recall);
  if (free != paths_.end()) (*free)->send_recall(recalls_);
}

void ServerSession::on_recall_heard(std::uint32_t count) {
  recalls_heard_ = count;
  send_recall();
}

/// True: some are not closed yet. The memory that they expose must not outlive the session.
bool ServerSession::ends_memory_paths() {
  const auto is_there = [](const ServerPath* path) {
    return path->is_memory() && !path->released_;
  };
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    if (is_there(paths_[i])) paths_[i]->fence("its session has ended", /*fault=*/false);
  }
  return std::ranges::any_of(paths_, is_there);
}

void ServerSession::fence_all(const char* why, bool fault) {
  over_ = true;
  // A driver may close a path at once, but removes it later.
  for (std::size_t i = 0; i < paths_.size(); ++i) paths_[i]->fence(why, fault);
}

// ---- Requests -----------------------------------------------------------------------------------

void ServerSession::take(ServerRequest& request, const wire::WriteTrailer& trailer) {
  ++requests_read_;
  if (must_wait()) {
    request.state = State::pending;
    pending_.push_back(&request);
    return;
  }
  request.batch = ++batch_;
  if (judge(request, trailer)) handler_.on_request(*this, request);
}

/// With generations a copy that is read late is known as one. Reads wait, too: a client that gets
/// no answers stops asking, so that reading comes to an end.
bool ServerSession::must_wait() const {
  if (options_.exactly_once()) return false;
  return connected_paths() > 1 || !pending_.empty();
}

/// A request that was read last may have copies on the paths that were read before it: all of them
/// again.
ServerSession::Judged ServerSession::read_and_judge(const std::function<bool()>& read_all) {
  if (reading_) return Judged::yes;
  for (unsigned round = 0; round < kMaxRounds; ++round) {
    const std::uint64_t before = requests_read_;
    reading_ = true;
    const bool all = read_all();
    reading_ = false;
    if (!all) return Judged::no;
    if (requests_read_ != before) continue;
    judge_pending();
    return Judged::yes;
  }
  return Judged::later;
}

/// All are judged before any of them is carried out. Otherwise the first of two copies might end at
/// once, and the other one would not be known as its copy. For the same reason all copies wait, or
/// none.
void ServerSession::judge_pending() {
  ++batch_;
  for (ServerRequest* request : pending_) {
    if (request != nullptr && !copy_is_arriving(*request)) request->batch = batch_;
  }
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    // One that is judged may close the paths of others, which are forgotten then.
    if (pending_[i] == nullptr || pending_[i]->batch != batch_) continue;
    ServerRequest& request = *std::exchange(pending_[i], nullptr);
    if (judge(request, {})) judged_.push_back(&request);
  }
  std::erase(pending_, nullptr);
  for (ServerRequest* request : judged_) handler_.on_request(*this, *request);
  judged_.clear();
}

/// True: an immediate was read on another path, but the key of its chunk is not withdrawn yet.
bool ServerSession::copy_is_arriving(const ServerRequest& request) const {
  if (request.is_read || over_) return false;
  return std::ranges::any_of(paths_, [&](const ServerPath* path) {
    return path->state() == ServerPathState::connected && path != request.path &&
           path->requests_[request.buffer_id].state == State::arrived;
  });
}

void ServerSession::forget_pending(const ServerRequest& request) {
  std::ranges::replace(pending_, &request, nullptr);
}

bool ServerSession::judge(ServerRequest& request, const wire::WriteTrailer& trailer) {
  if (!request.is_read && !judge_write(request, trailer)) return false;
  request.state = State::executing;
  ++request.path->executing_;
  ++executing_;
  return true;
}

bool ServerSession::judge_write(ServerRequest& request, const wire::WriteTrailer& trailer) {
  ServerSlot& slot = slots_[request.buffer_id];
  const auto verdict = options_.exactly_once()
                           ? rtrs::judge(slot, trailer.generation, (trailer.flags & wire::kSettle))
                           : judge_resent(slot, request);
  switch (verdict) {
    case SlotVerdict::execute:
      slot.executing = &request;
      return true;
    case SlotVerdict::attach:
      ++repeats_.attached;
      wait_behind(slot, request, State::attached);
      return false;
    case SlotVerdict::follow:
      wait_behind(slot, request, State::following);
      return false;
    case SlotVerdict::answer:
      ++repeats_.answered;
      request.path->end(request, slot.status);
      return false;
    case SlotVerdict::answer_older:
      ++repeats_.dropped;
      if (!options_.races()) {
        request.path->drop(request);
      } else {
        request.path->end(request, ESTALE);
      }
      return false;
    case SlotVerdict::forbidden:
      request.path->free(request);
      fence_all("the client used a permit before it had its answer", /*fault=*/true);
      return false;
  }
  return false;
}

void ServerSession::wait_behind(ServerSlot& slot, ServerRequest& request, State as) {
  request.state = as;
  request.next = std::exchange(slot.waiting, &request);
  if (options_.exactly_once()) return;
  // Without generations a late copy cannot be told from a new request, so where the earlier ones
  // came from nothing more may come. Which of those that were read together is the earlier one,
  // nobody knows.
  constexpr char kWhy[] = "the client has sent a request again on another path";
  ServerPath& newest = *request.path;
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    ServerPath& path = *paths_[i];
    if (path.requests_.empty()) continue;
    const ServerRequest& there = path.requests_[request.buffer_id];
    const bool earlier =
        there.state != State::free && !there.is_read && there.batch < request.batch;
    if (&path != &newest && earlier) path.fence(kWhy, /*fault=*/false);
  }
}

/// A Linux client before 6.12 takes a failed write for a successful one when it learns of the
/// failure before its own memory registration ended. Source: docs/protocol.md, replies.
bool ServerSession::must_delay(const ServerRequest& request, int error) const {
  const bool may_be_lost =
      error != 0 && !options_.extension && !request.is_read && !request.data.empty();
  const ServerPath& path = *request.path;
  return may_be_lost && path.state() == ServerPathState::connected;
}

void ServerSession::finish(ServerRequest& request, int error) {
  if (must_delay(request, error)) return request.path->owner_.delay_answer(request, error);
  answer(request, error);
}

void ServerSession::answer(ServerRequest& request, int error) {
  const bool executed = request.state == State::executing;
  RTRS_ENSURE((executed || request.state == State::ended) && executing_ > 0);
  ServerRequest* waiting = nullptr;
  if (executed && !request.is_read) {
    ServerSlot& slot = slots_[request.buffer_id];
    if (slot.executing == &request) {
      slot.executing = nullptr;
      slot.status = error;
      waiting = std::exchange(slot.waiting, nullptr);
    }
  }
  ServerPath& path = *request.path;
  --executing_;
  --path.executing_;
  path.end(request, error);
  path.give_back(request);
  ServerRequest* successor = nullptr;
  while (waiting != nullptr) {
    ServerRequest& next = *waiting;
    waiting = std::exchange(next.next, nullptr);
    if (next.state == State::free) continue;  // its path was closed for one before it
    if (next.state != State::following) {
      answer_copy(next, error);
    } else if (judge(next, {})) {
      successor = &next;  // the others wait for this one now
    }
  }
  if (successor != nullptr) handler_.on_request(*this, *successor);
  path.check_gone();
  check_gone();
}

void ServerSession::answer_copy(ServerRequest& waiting, int error) {
  if (!must_delay(waiting, error)) return waiting.path->end(waiting, error);
  waiting.state = State::ended;
  ++executing_;
  ++waiting.path->executing_;
  waiting.path->owner_.delay_answer(waiting, error);
}

// ---- The end ------------------------------------------------------------------------------------

bool ServerSession::lingers() const {
  const bool expired = linger_expired_ && executing_ == 0;
  return options_.exactly_once() && up_ && !over_ && !expired;
}

void ServerSession::end() {
  over_ = true;
  judge_pending();  // nobody reads any more
  check_gone();
}

void ServerSession::on_linger_expired() {
  if (idle()) {
    end_if_idle();
    return;
  }
  linger_expired_ = true;
  check_gone();
}

bool ServerSession::end_if_idle() {
  if (!idle()) return false;
  fence_all("the session has ended", /*fault=*/false);  // those that are half open
  end();
  return true;
}

void ServerSession::check_gone() {
  if (gone_ || has_live_path()) return;
  if (lingers()) return owner_.on_lingering();
  over_ = true;
  if (executing_ != 0) return;
  if (ends_memory_paths() || gone_) return;
  gone_ = true;
  if (std::exchange(up_, false)) handler_.on_session_down(*this);
  for (std::size_t i = 0; i < paths_.size(); ++i) paths_[i]->check_gone();
  owner_.on_gone();
}

}  // namespace rtrs
