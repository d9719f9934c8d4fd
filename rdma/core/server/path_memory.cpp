// SPDX-License-Identifier: BSD-3-Clause
// The memory of a path that has a part of it only, and borrows the rest while it is busy.
#include <algorithm>
#include <utility>

#include "rdma/core/server/path.hpp"
#include "rdma/wire/immediate.hpp"

namespace rtrs {
namespace {

/// A path without requests keeps its memory for so long: giving it back costs more than a request.
constexpr Duration kIdle = std::chrono::seconds{1};
/// The longest time between two signs of life on a connection that is not read. Clients may have
/// shorter heartbeats than this server.
constexpr Duration kSign = std::chrono::milliseconds{50};

}  // namespace

// ---- Room ---------------------------------------------------------------------------------------

/// A chunk is written by one connection at a time, and by nobody while its request executes, but
/// for small writes to its start. So the rest can go back when the request has ended.
QueuePairHandler::Room ServerPath::Connection::room_for(std::uint64_t address,
                                                        std::uint32_t length) {
  if (path->state_ != ServerPathState::connected) return {};
  if (address >= path->chunks_.memory().size()) return {};  // the transport refuses it
  const std::uint32_t size = path->chunks_.size();
  const std::uint32_t chunk = static_cast<std::uint32_t>(address) / size;
  const Use use{.chunk = chunk,
                .begin = static_cast<std::uint32_t>(address) - chunk * size,
                .length = length,
                .connection = this};
  if (length > size - use.begin) return {.wrong = "a write to more than one chunk"};
  ServerRequest& request = path->requests_[chunk];
  if (request.state != ServerRequest::State::free) {
    return {.wrong = "a write to a chunk whose request still executes"};
  }
  const std::uint32_t self = cid + 1U;
  if (request.writer != 0 && request.writer != self) {
    return {.wrong = "two connections write to one chunk"};
  }
  if (awaits_room) return {.there = false};
  if (!path->loan_.covers(chunk, use.begin, use.end()) && !path->have_room(use)) {
    awaits_room = true;
    return {.there = false};
  }
  request.writer = self;
  return {};
}

/// The data of an answer need room before they are there.
bool ServerPath::find_room_to_answer(ServerRequest& request) {
  if (!loan_.limited() || loan_.covers(request.buffer_id, 0, request.data.size())) return true;
  request.state = ServerRequest::State::starved;
  const Use use{.chunk = request.buffer_id,
                .length = static_cast<std::uint32_t>(request.data.size()),
                .request = &request};
  if (!have_room(use)) return false;
  request.state = ServerRequest::State::arrived;
  return true;
}

std::uint64_t ServerPath::lacks(const Use& use) const {
  return loan_.lacks(use.chunk, use.begin, use.end());
}

/// The first to ask is served first, or else others would keep a large one waiting. A request that
/// needs no loan passes it.
bool ServerPath::have_room(const Use& use) {
  if (starving_.empty() && loan_.extend(use.chunk, use.begin, use.end())) return true;
  clear(use.chunk);
  if ((starving_.empty() || lacks(use) == 0) && claim(use)) return true;
  starving_.push_back(use);
  if (starving_.size() > 1) return false;
  await_room();
  owner_.on_starved();
  return false;
}

void ServerPath::await_room() {
  give_back_loan();
  loan_.await(lacks(starving_.front()));
}

/// Chunks without a request come first, so that a path within its floor always goes on. Others who
/// wait get what goes back before that.
bool ServerPath::claim(const Use& use) {
  if (loan_.extend(use.chunk, use.begin, use.end())) return true;
  clear(use.chunk);
  if (loan_.is_wanted()) give_back_loan();
  reclaim(lacks(use));
  return loan_.extend(use.chunk, use.begin, use.end());
}

void ServerPath::on_memory() {
  while (starves() && claim(starving_.front())) {
    const Use next = starving_.front();
    starving_.erase(starving_.begin());
    if (!starves()) loan_.stop_waiting();
    if (next.request == nullptr) {
      // If it is another one's, the connection finds out when it is read on.
      ServerRequest& request = requests_[next.chunk];
      const bool is_free = request.state == ServerRequest::State::free && request.writer == 0;
      if (is_free) request.writer = next.connection->cid + 1U;
      next.connection->awaits_room = false;
    } else {
      next.request->state = ServerRequest::State::arrived;
      session_.take(*next.request, {});  // perhaps it closes the path
    }
  }
  if (loan_.is_wanted()) give_back_loan();
  if (starves()) await_room();
}

Duration ServerPath::sign_interval() const {
  return std::min(kSign, options_.heartbeat_interval / 2);
}

/// A connection that is not read does not answer its client, which would take it for dead.
void ServerPath::show_life() {
  if (!starves()) return;
  for (Connection& connection : connections_) {
    if (!connection.awaits_room) continue;
    if (!connection.queue_pair->is_sent(connection.last_sign)) continue;  // nobody reads them
    connection.last_sign =
        connection.queue_pair->write_with_immediate({}, {}, {}, wire::kHeartbeat);
  }
}

void ServerPath::stop_starving() {
  if (!starves()) return;
  starving_.clear();
  loan_.stop_waiting();
}

// ---- Memory that goes back ----------------------------------------------------------------------

/// Nothing that is needed is in the chunk, or on its way into it or out of it. The message of a
/// read that waits was copied: if it kept what its chunk has from before, others would wait for
/// that.
bool ServerPath::is_idle(std::uint32_t chunk) const {
  using State = ServerRequest::State;
  const ServerRequest& request = requests_[chunk];
  const bool has_data = request.state != State::free && request.state != State::starved;
  if (has_data || request.writer != 0) return false;
  return connections_[request.cid].queue_pair->is_sent(request.answer);
}

/// The first pages stay: nobody is asked before a small write arrives there.
MutableBytes ServerPath::forget(std::uint32_t chunk) {
  const std::uint64_t end = std::min<std::uint64_t>(loan_.span(chunk), chunks_.size());
  const std::uint64_t begin = std::min<std::uint64_t>(end, QueuePairHandler::kAlwaysRoom);
  loan_.forget(chunk);
  return chunks_.at(chunk).subspan(begin, end - begin);
}

/// The memory that a former request has left there goes back.
void ServerPath::clear(std::uint32_t chunk) {
  if (loan_.span(chunk) == 0 || !is_idle(chunk)) return;
  const MutableBytes part = forget(chunk);
  owner_.on_spare({&part, 1});
}

/// At least so many bytes of idle chunks, if there are so many.
void ServerPath::reclaim(std::uint64_t bytes) {
  std::vector<MutableBytes> parts;
  std::uint64_t freed = 0;
  for (std::uint32_t chunk = 0; chunk < requests_.size() && freed < bytes; ++chunk) {
    if (loan_.used(chunk) == 0 || !is_idle(chunk)) continue;
    freed += loan_.used(chunk);
    parts.push_back(forget(chunk));
  }
  if (!parts.empty()) owner_.on_spare(parts);
}

/// The first that waits keeps what was lent to it, also before it has gone on.
void ServerPath::settle() { loan_.settle(starves() ? lacks(starving_.front()) : 0); }

/// Memory beyond the floor that is not in use goes back, because others wait.
void ServerPath::give_back_loan() {
  if (state_ != ServerPathState::connected) return;
  reclaim(loan_.used() - std::min(loan_.used(), loan_.floor()));
  settle();
}

/// All of the memory goes back when nothing has been under way for a while.
void ServerPath::give_back_when_idle(Instant now) {
  if (loan_.is_wanted()) give_back_loan();
  loan_.relax(now);
  const bool idle = unanswered_ == 0 && std::exchange(begun_before_, begun_) == begun_;
  if (!idle) {
    idle_since_.reset();
    has_spare_ = true;
    return;
  }
  if (!idle_since_) idle_since_ = now;
  if (!has_spare_ || now - *idle_since_ < kIdle) return;
  bool in_use = false;
  for (std::uint32_t chunk = 0; chunk < requests_.size() && !in_use; ++chunk)
    in_use = !is_idle(chunk);
  for (const Connection& connection : connections_)
    in_use = in_use || connection.queue_pair->arriving();
  if (in_use) {
    reclaim(loan_.used());
    return settle();
  }
  for (std::uint32_t chunk = 0; chunk < requests_.size(); ++chunk) loan_.forget(chunk);
  has_spare_ = false;
  const MutableBytes all = chunks_.memory();
  owner_.on_spare({&all, 1});
  settle();
}

std::uint64_t ServerPath::loan_in_use() const {
  std::uint64_t sum = 0;
  for (std::uint32_t chunk = 0; chunk < requests_.size(); ++chunk) {
    const bool waits = requests_[chunk].state == ServerRequest::State::starved;
    if (!waits && !is_idle(chunk)) sum += loan_.used(chunk);
  }
  return sum;
}

std::uint64_t ServerPath::starving_for() const {
  if (!starves()) return 0;
  const Use& use = starving_.front();
  return lacks(use) + (is_idle(use.chunk) ? loan_.used(use.chunk) : 0);
}

}  // namespace rtrs
