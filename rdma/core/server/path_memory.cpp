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

/// Calls visit(chunk, begin, end) with the bytes that are used of each chunk. An honest client
/// writes to one.
template <class Visit>
void ServerPath::for_each_chunk(const Use& use, Visit visit) const {
  const std::uint64_t size = chunks_.size();
  const std::uint64_t all = chunks_.memory().size();
  const std::uint64_t end = std::min(use.address + use.length, all);
  for (std::uint64_t at = use.address; at < end;) {
    const std::uint64_t chunk = at / size;
    const std::uint64_t upto = std::min(end, (chunk + 1) * size);
    visit(static_cast<std::uint32_t>(chunk), at - chunk * size, upto - chunk * size);
    at = upto;
  }
}

std::uint64_t ServerPath::lacks(const Use& use) const {
  std::uint64_t sum = 0;
  for_each_chunk(use, [&](std::uint32_t chunk, std::uint64_t begin, std::uint64_t end) {
    sum += loan_.lacks(chunk, begin, end);
  });
  return sum;
}

/// The first to ask is served first, or else small requests would keep a large one waiting.
bool ServerPath::have_room(const Use& use) {
  if ((starving_.empty() || lacks(use) == 0) && claim(use)) return true;
  starving_.push_back(use);
  if (starving_.size() > 1) return false;
  loan_.account()->begin_wait();
  next_sign_ = Instant{};
  owner_.on_starved();
  return false;
}

/// Chunks without a request come first, so that a path within its floor always goes on.
bool ServerPath::claim(const Use& use) {
  const auto extend = [&] {
    bool all = true;
    for_each_chunk(use, [&](std::uint32_t chunk, std::uint64_t begin, std::uint64_t end) {
      all = all && loan_.extend(chunk, begin, end);
    });
    return all;
  };
  if (extend()) return true;
  reclaim(lacks(use), use);
  return extend();
}

void ServerPath::expect_in(const Use& use) {
  for_each_chunk(use, [&](std::uint32_t chunk, auto...) { arriving_[chunk] = true; });
}

bool ServerPath::Connection::has_room(std::uint64_t address, std::uint32_t length) {
  if (!path->loan_.limited() || path->state_ != ServerPathState::connected) return true;
  if (room == Room::awaited) return false;
  // As nearly always: one chunk, and there is memory.
  const std::uint32_t size = path->chunks_.size();
  const auto chunk = static_cast<std::uint32_t>(address) / size;
  const std::uint64_t begin = address - std::uint64_t{chunk} * size;
  if (room == Room::unknown && path->starving_.empty() && chunk < path->requests_.size() &&
      begin + length <= size && path->loan_.extend(chunk, begin, begin + length)) {
    path->arriving_[chunk] = true;
    return true;
  }
  const Use use{.address = address, .length = length, .connection = this};
  if (room == Room::unknown && !path->have_room(use)) {
    room = Room::awaited;
    return false;
  }
  room = Room::unknown;
  path->expect_in(use);
  return true;
}

/// The data of an answer need room before they are there.
bool ServerPath::has_room_to_answer(ServerRequest& request) {
  if (!loan_.limited() || request.data.empty()) return true;
  if (starving_.empty() && loan_.extend(request.buffer_id, 0, request.data.size())) return true;
  request.state = ServerRequest::State::starved;
  if (!have_room({.address = chunks_.offset_of(request.buffer_id),
                  .length = request.data.size(),
                  .request = &request})) {
    return false;
  }
  request.state = ServerRequest::State::arrived;
  return true;
}

void ServerPath::go_on(Instant now) {
  while (starves() && claim(starving_.front())) {
    const Use next = starving_.front();
    starving_.erase(starving_.begin());
    if (!starves()) loan_.account()->end_wait();
    if (next.request == nullptr) {
      next.connection->room = Room::granted;
      expect_in(next);
    } else {
      next.request->state = ServerRequest::State::arrived;
      session_.take(*next.request, {});  // perhaps it closes the path
    }
  }
  show_life(now);
}

/// A connection that is not read does not answer its client, which would take it for dead.
void ServerPath::show_life(Instant now) {
  if (!starves() || now < next_sign_) return;
  next_sign_ = now + std::min(kSign, options_.heartbeat_interval / 2);
  for (Connection& connection : connections_) {
    if (connection.room != Room::awaited) continue;
    if (connection.queue_pair->sent() < connection.last_sign) continue;  // nobody reads them
    connection.last_sign =
        connection.queue_pair->write_with_immediate({}, {}, {}, wire::kHeartbeat);
  }
}

void ServerPath::stop_starving() {
  if (!starves()) return;
  starving_.clear();
  loan_.account()->end_wait();
}

// ---- Memory that goes back ----------------------------------------------------------------------

/// Nothing that is needed is in the chunk, or on its way into it or out of it. The message of a
/// read that waits was copied: if it kept what its chunk has from before, others would wait for
/// that.
bool ServerPath::is_idle(std::uint32_t chunk) const {
  using State = ServerRequest::State;
  const ServerRequest& request = requests_[chunk];
  const bool has_data = request.state != State::free && request.state != State::starved;
  if (has_data || arriving_[chunk]) return false;
  return request.answer <= connections_[request.cid].queue_pair->sent();
}

/// At least so many bytes of idle chunks, if there are so many.
void ServerPath::reclaim(std::uint64_t bytes, const Use& except) {
  std::vector<MutableBytes> parts;
  const std::uint64_t size = chunks_.size();
  std::uint64_t freed = 0;
  for (std::uint32_t chunk = 0; chunk < requests_.size() && freed < bytes; ++chunk) {
    const std::uint64_t begin = chunks_.offset_of(chunk);
    const bool excepted = begin < except.address + except.length && except.address < begin + size;
    if (loan_.used(chunk) == 0 || excepted || !is_idle(chunk)) continue;
    parts.push_back(chunks_.at(chunk).first(std::min(loan_.span(chunk), size)));
    freed += loan_.used(chunk);
    loan_.forget(chunk);
  }
  if (!parts.empty()) owner_.on_spare(parts);
}

/// Memory beyond the floor that is not in use goes back, because others wait.
void ServerPath::give_back_loan() {
  if (state_ != ServerPathState::connected) return;
  const std::uint64_t beyond = loan_.used() - std::min(loan_.used(), loan_.floor());
  if (beyond != 0) reclaim(beyond, {});
  loan_.settle();
}

/// All of the memory goes back when nothing has been under way for a while.
void ServerPath::give_back_when_idle(Instant now) {
  if (loan_.is_wanted()) give_back_loan();
  const bool idle = unanswered_ == 0 && std::exchange(begun_before_, begun_) == begun_;
  if (!idle) {
    idle_since_.reset();
    has_spare_ = true;
    return;
  }
  if (!idle_since_) idle_since_ = now;
  if (!has_spare_ || now - *idle_since_ < kIdle) return;
  for (std::uint32_t chunk = 0; chunk < requests_.size(); ++chunk) {
    if (!is_idle(chunk)) return reclaim(loan_.used(), {}), loan_.settle();
  }
  for (std::uint32_t chunk = 0; chunk < requests_.size(); ++chunk) loan_.forget(chunk);
  has_spare_ = false;
  const MutableBytes all = chunks_.memory();
  owner_.on_spare({&all, 1});
  loan_.settle();
}

std::uint64_t ServerPath::loan_in_use() const {
  std::uint64_t sum = 0;
  for (std::uint32_t chunk = 0; chunk < requests_.size(); ++chunk) {
    if (loan_.used(chunk) != 0 && !is_idle(chunk)) sum += loan_.used(chunk);
  }
  return sum;
}

std::uint64_t ServerPath::starving_for() const {
  if (!starves()) return 0;
  std::uint64_t sum = lacks(starving_.front());
  for_each_chunk(starving_.front(), [&](std::uint32_t chunk, auto...) {
    if (is_idle(chunk)) sum += loan_.used(chunk);
  });
  return sum;
}

}  // namespace rtrs
