// SPDX-License-Identifier: BSD-3-Clause
// Maps: the one-sided access of clients to blocks, and its end.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "bridge/backend/brick/brick.hpp"

namespace rnbd::brick {
namespace {

/// Answers of MAPs that a client has not settled.
constexpr std::size_t kMaxPastAnswers = 4096;

/// True if two maps may exist at the same time.
bool agree(std::uint32_t one, std::uint32_t other) {
  const auto allows = [](std::uint32_t mine, std::uint32_t theirs) {
    if ((theirs & kRead) != 0 && (mine & (kOthersRead | kOthersWrite)) == 0) return false;
    return (theirs & kWrite) == 0 || (mine & kOthersWrite) != 0;
  };
  return allows(one, other) && allows(other, one);
}

}  // namespace

/// The client has repeated a question. True when the answer is all that it needs.
bool Brick::answered_before(Ticket ticket, const MapOrder& order) {
  std::uint32_t& settled = settled_[order.session];
  settled = std::max(settled, order.settled);
  auto& answers = past_answers_[order.session];
  answers.erase(answers.begin(), answers.lower_bound(settled));
  if (order.number < settled) {
    host_.answer(ticket, Reply{.error = ECANCELED});
    return true;
  }
  const auto found = answers.find(order.number);
  if (found == answers.end()) return false;
  const PastAnswer& known = found->second;
  if (known.running != 0) {
    operations_.at(known.running).again.push_back(ticket);
    return true;
  }
  Reply reply{.error = known.error};
  if (known.error == 0) reply.maps = views(known.generation);
  if (known.error == 0 && reply.maps.size() != known.count) reply = Reply{.error = ECANCELED};
  host_.answer(ticket, reply);
  return true;
}

int Brick::may_map_one(const Entry& entry, const MapOrder& order) const {
  if (entry.freeing) return EBUSY;
  for (const std::uint64_t id : entry.maps) {
    const Map& map = maps_.at(id);
    if (map.path == order.path) return EEXIST;
    const bool ending = map.state == Map::State::ending && (map.rights & kWrite) == 0;
    if (ending) continue;
    if (map.session != order.session && !agree(map.rights, order.rights)) return EBUSY;
  }
  const bool slow = entry.state == State::slow || entry.state == State::coming;
  return slow && (order.rights & kNoWait) != 0 ? EAGAIN : 0;
}

int Brick::may_map(const MapOrder& order) const {
  const auto path = paths_.find(order.path);
  if (path == paths_.end() || path->second != order.session) return ENOTCONN;
  if (order.count > options_.slots) return ENOSPC;
  if (maps_of(order.session) + order.count > options_.max_maps) return EMFILE;
  for (Block block = order.first; block < order.first + order.count; ++block) {
    const auto found = entries_.find(block);
    if (found == entries_.end() || !found->second.recorded) return ENOENT;
    if (const int error = may_map_one(found->second, order); error != 0) return error;
  }
  return 0;
}

std::uint64_t Brick::maps_of(Session session) const {
  return static_cast<std::uint64_t>(
      std::count_if(maps_.begin(), maps_.end(),
                    [&](const auto& item) { return item.second.session == session; }));
}

void Brick::map(Ticket ticket, const MapOrder& order) {
  if (answered_before(ticket, order)) return;
  auto& answers = past_answers_[order.session];
  // Nothing is remembered of it, so it may be asked again when others are settled.
  if (answers.size() >= kMaxPastAnswers) return host_.answer(ticket, Reply{.error = EMFILE});
  PastAnswer& answer = answers[order.number];
  if (const int error = may_map(order); error != 0) {
    answer = {.error = error};
    return host_.answer(ticket, Reply{.error = error});
  }
  answer.running = ticket;
  Operation& operation = operations_[ticket];
  operation.kind = Operation::Kind::map;
  operation.order = order;
  waiting_.push_back(ticket);
  wake();
}

/// All blocks are in memory and held.
void Brick::make_keys(Ticket ticket, Operation& operation) {
  operation.begun = true;
  operation.left = operation.order.count;
  operation.generation = next_++;
  const MapOrder order = operation.order;
  for (Block block = order.first; block < order.first + order.count; ++block) {
    Entry& entry = entries_.at(block);
    const std::uint64_t id = next_++;
    Map map;
    map.block = block;
    map.session = order.session;
    map.path = order.path;
    map.rights = order.rights;
    map.generation = operation.generation;
    map.mapper = ticket;
    maps_.emplace(id, map);
    entry.maps.insert(id);
    touch(block, entry);
    if ((order.rights & kWrite) != 0) entry.unkept = true;
    host_.expose({id, order.path, block, entry.slot, order.rights & (kRead | kWrite)});
  }
}

void Brick::exposed(std::uint64_t id, std::uint32_t key, std::uint64_t address, int error) {
  const auto found = maps_.find(id);
  if (found == maps_.end()) return;
  Map& map = found->second;
  map.key = key;
  map.address = address;
  map.state = Map::State::live;
  const Ticket mapper = map.mapper;
  if (error != 0) {
    forget_map(id);
  } else if (map.doomed) {
    error = ENOTCONN;
    end_map(id, 0);
  }
  part_done(mapper, error);
  wake();
}

/// If a part of a MAP fails, all of its maps end.
void Brick::answer_map(Ticket ticket, Operation& operation) {
  Reply reply{.error = operation.error};
  reply.maps = views(operation.generation);
  if (reply.error == 0 && reply.maps.size() != operation.order.count) reply.error = ENOTCONN;
  if (reply.error != 0) {
    for (auto& [id, map] : maps_)
      if (map.generation == operation.generation) end_map(id, 0);
    reply.maps.clear();
  }
  let_go(operation);
  const std::vector<Ticket> again = operation.again;
  const MapOrder order = operation.order;
  if (const auto answers = past_answers_.find(order.session); answers != past_answers_.end()) {
    const auto told = answers->second.find(order.number);
    if (told != answers->second.end())
      told->second = {0, reply.error, operation.generation, order.count};
  }
  operations_.erase(ticket);
  host_.answer(ticket, reply);
  for (const Ticket other : again) host_.answer(other, reply);
}

/// B1, B3: a wait for the end of a map is a wait for the end of its key.
void Brick::end_map(std::uint64_t id, Ticket ender) {
  Map& map = maps_.at(id);
  if (ender != 0) {
    map.enders.push_back(ender);
    ++operations_.at(ender).left;
  }
  if (map.state == Map::State::exposing) {
    map.doomed = true;
  } else if (map.state == Map::State::live) {
    map.state = Map::State::ending;
    host_.retire(id);
  }
}

void Brick::retired(std::uint64_t id) {
  if (maps_.contains(id)) forget_map(id);
  wake();
}

void Brick::forget_map(std::uint64_t id) {
  const auto found = maps_.find(id);
  const Map map = std::move(found->second);
  maps_.erase(found);
  const auto entry = entries_.find(map.block);
  if (entry != entries_.end()) {
    entry->second.maps.erase(id);
    if (entry->second.slot != kNone) touch(map.block, entry->second);
  }
  for (const Ticket ticket : map.enders) part_done(ticket, 0);
}

void Brick::unmap(Ticket ticket, Session session, Block first, std::uint64_t count,
                  std::uint64_t generation) {
  std::vector<std::uint64_t> ending;
  for (const auto& [id, map] : maps_) {
    const bool meant = map.session == session && map.state == Map::State::live &&
                       map.block >= first && map.block - first < count;
    if (meant && map.generation == generation) ending.push_back(id);
  }
  if (ending.size() != count) return host_.answer(ticket, Reply{.error = ENOENT});
  begin(ticket);
  for (const std::uint64_t id : ending) end_map(id, ticket);
  end_part(ticket);
}

std::vector<MapView> Brick::views(std::uint64_t generation) const {
  std::vector<MapView> views;
  for (const auto& [id, map] : maps_) {
    if (map.generation != generation || map.state != Map::State::live) continue;
    views.push_back(
        {map.block, map.address, map.generation, map.key, map.rights & (kRead | kWrite)});
  }
  return views;
}

std::vector<MapReport> Brick::maps() const {
  std::vector<MapReport> reports;
  for (const auto& [id, map] : maps_)
    reports.push_back({map.session, map.block, map.rights, map.recalled});
  return reports;
}

std::vector<std::uint64_t> Brick::maps_on(Path path) const {
  std::vector<std::uint64_t> result;
  for (const auto& [id, map] : maps_)
    if (map.path == path) result.push_back(id);
  return result;
}

void Brick::path_up(Session session, Path path) { paths_[path] = session; }

void Brick::path_gone(Path path) {
  paths_.erase(path);
  for (const std::uint64_t id : maps_on(path)) end_map(id, 0);
}

/// B2: this holds for a path that is gone already, too, because its keys may still be alive.
void Brick::revoke(Ticket ticket, Path path) {
  begin(ticket);
  if (paths_.erase(path) > 0) host_.kill(path);
  for (const std::uint64_t id : maps_on(path)) end_map(id, ticket);
  end_part(ticket);
}

/// B1: others may write when it is answered.
void Brick::leave(Ticket ticket, Session session) {
  begin(ticket);
  std::erase_if(paths_, [session](const auto& path) { return path.second == session; });
  for (auto& [id, map] : maps_)
    if (map.session == session) end_map(id, ticket);
  end_part(ticket);
}

void Brick::session_gone(Session session) {
  std::vector<Path> paths;
  for (const auto& [path, owner] : paths_)
    if (owner == session) paths.push_back(path);
  for (const Path path : paths) path_gone(path);
  past_answers_.erase(session);
  settled_.erase(session);
}

/// The oldest map of another session, or else of the session that asks.
void Brick::recall_for(Session asking) {
  if (recalls()) return;  // one is on its way
  std::uint64_t mine = 0;
  for (const auto& [id, map] : maps_) {
    if (map.state != Map::State::live) continue;
    if (map.session != asking) return recall_one(id);
    if (mine == 0) mine = id;
  }
  if (mine != 0) recall_one(mine);
}

void Brick::recall_one(std::uint64_t id) {
  Map& map = maps_.at(id);
  map.recalled = true;
  host_.recall(map.session);
}

bool Brick::recalls() const {
  return std::any_of(maps_.begin(), maps_.end(), [](const auto& item) {
    return item.second.recalled && item.second.state == Map::State::live;
  });
}

/// B6.
void Brick::tick(std::uint64_t now) {
  std::set<Path> late;
  for (auto& [id, map] : maps_) {
    if (!map.recalled || map.state != Map::State::live) continue;
    if (!map.recalled_at) map.recalled_at = now;
    if (now - *map.recalled_at >= options_.lease) late.insert(map.path);
  }
  for (const Path path : late) {
    if (paths_.contains(path)) host_.kill(path);
    path_gone(path);
  }
}

}  // namespace rnbd::brick
