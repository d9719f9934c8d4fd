// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cerrno>
#include <utility>

#include "tests/sim/mirror/mirror_world.hpp"

namespace sim {

MirrorClient::MirrorClient(MirrorWorld& the_world, unsigned the_number,
                           const mirror::GroupOptions& options, std::vector<unsigned> the_names)
    : world{the_world},
      number{the_number},
      names{std::move(the_names)},
      linked(names.size() + 1),
      granted(names.size() + 1),
      broken(names.size() + 1),
      cut(names.size() + 1),
      shown(names.size() + 1),
      group{options, *this} {}

/// Data of copies leave their memory now, which is kept for them.
void MirrorClient::send(const mirror::Command& command) {
  MirrorWorld::Message message{.client = number,
                               .link = linked[command.member],
                               .node = names[command.member],
                               .sent_at = world.time_,
                               .command = command,
                               .told = world.ledger_.sent(number, command, names)};
  const bool own = command.operation >= mirror::Group::kOwn;
  if (own && (command.order == mirror::Order::write || command.order == mirror::Order::copy ||
              command.order == mirror::Order::clear))
    message.data = copies.at({command.operation, command.source});
  if (command.order == mirror::Order::clear)
    message.data.resize(command.range.end - command.range.begin);
  if (!own && command.operation != 0) {
    used[command.operation].began();
    out.push_back({command.operation, command.member, message.link});
  }
  world.send(std::move(message));
}

void MirrorClient::session_over(unsigned member) {
  linked[member] = 0;
  if (world.mood_.lag == 0) part();
}

void MirrorClient::part() {
  std::erase_if(world.unsent_, [this](const MirrorWorld::Message& message) {
    return message.client == number && is_late(message.command.member, message.link);
  });
  for (const Out& each : std::vector<Out>{out})
    if (is_late(each.member, each.link)) collect(each);
}

void MirrorClient::collect(const Out& answered) {
  if (std::erase(out, answered) == 0) return;
  if (const auto use = used.find(answered.operation); use != used.end()) use->second.ended();
  give_back(answered.operation);
}

void MirrorClient::give_back(std::uint64_t operation) {
  const auto end = ended.find(operation);
  if (end == ended.end() || !used[operation].may_return()) return;
  if (memory.at(operation) != end->second)
    throw MirrorViolation("what a user has read is overwritten");
  forget(operation);
}

void MirrorClient::attached() {
  world.say("client " + std::to_string(number) + " attached");
  if (world.plain_) throw MirrorViolation("a client attaches to a mirror that was dissolved");
  astray = mirror::history_of(group.term()) < world.history_;
  if (!astray) world.checker.attached(number);
  grown();
}

void MirrorClient::grown() {
  sectors = group.disk_size() / kSectorBytes;
  if (!astray) world.sized(*this);
}

bool MirrorClient::force(unsigned member) {
  if (!group.force(member)) return false;
  forced = group.term();
  world.forced_ = mirror::history_of(forced);
  world.say("member " + std::to_string(member) + " is forced to go on");
  return true;
}

void MirrorClient::done(std::uint64_t operation) {
  const auto request = requests.find(operation);
  if (request != requests.end()) {
    const auto [kind, range] = request->second;
    requests.erase(request);
    // A change that all had before the next client came may be acknowledged later.
    const bool lags = late && world.checker.newest() != number;
    const bool counts = !astray && (!lags || mirror::shows(kind));
    if (!counts) return end(operation);
    if (kind == mirror::Group::Kind::write || kind == mirror::Group::Kind::zero)
      world.checker.wrote(number, operation);
    if (kind == mirror::Group::Kind::flush) world.checker.flushed(number, operation);
    if (mirror::shows(kind)) world.checker.read(number, operation, range, memory.at(operation));
  }
  end(operation);
}

void MirrorClient::end(std::uint64_t operation) {
  if (operation >= mirror::Group::kOwn) return forget(operation);
  ended[operation] = memory.at(operation);
  give_back(operation);
}

void MirrorClient::failed(std::uint64_t operation, int /*error*/) {
  if (!astray) world.checker.gave_up(number, operation);
  requests.erase(operation);
  end(operation);
}

void MirrorClient::forget(std::uint64_t operation) {
  memory.erase(operation);
  used.erase(operation);
  ended.erase(operation);
  std::erase_if(copies, [&](const auto& copy) { return copy.first.first == operation; });
}

mirror::MemberSet MirrorClient::same(std::uint64_t operation, mirror::MemberSet members,
                                     unsigned source) {
  mirror::MemberSet same = 0;
  for (unsigned i = 0; i < linked.size(); ++i)
    if (mirror::has(members, i) && copies.at({operation, i}) == copies.at({operation, source}))
      same = mirror::with(same, i);
  return same;
}

void MirrorClient::dissolved(int error) {
  dissolves = false;
  if (error != 0 && hears && world.plain_)
    throw MirrorViolation("a mirror goes on whose server is a disk of its own");
  if (error != 0) return;
  if (!world.plain_) throw MirrorViolation("a mirror is dissolved, and its record is there still");
  dead = true;
}

/// Copies of members in step differ only where a disk has lost what it had.
void MirrorClient::differs(const mirror::Difference& found) {
  const auto rotten = world.rotten_;
  const bool is_there = rotten && found.range.begin <= *rotten && *rotten < found.range.end;
  if (found.different != 0 && !is_there)
    throw MirrorViolation("a difference is told where there is none");
  world.found_ = world.found_ || is_there;
}

/// A member without room is lost only if the group goes on.
void MirrorClient::answered(const mirror::Answer& answer) {
  hears = true;
  group.answer(answer);
  hears = false;
  if (answer.error == ENOSPC && group.is_over())
    throw MirrorViolation("the group ends as a disk is full");
}

mirror::MemberSet MirrorClient::leased() {
  mirror::MemberSet leased = 0;
  for (unsigned i = 0; i < shown.size(); ++i)
    if (shown[i] && world.time_ - *shown[i] < kLease) leased = mirror::with(leased, i);
  return leased;
}

bool MirrorClient::leases_ended() { return world.time_ - claimed_at >= kLeaseEnd; }

bool MirrorClient::may_copy(unsigned under_way) {
  const bool begins = world.quiet_ || world.rng.chance(world.mood_.copy);
  return begins && under_way < world.mood_.at_once;
}

void MirrorClient::submit() {
  using Kind = mirror::Group::Kind;
  // One that does not know of the next client shows by new reads whether it serves users.
  const bool replaced = late && world.checker.newest() != number;
  if (requests.size() >= (replaced ? 12 : 6)) return;
  const bool zeroes = world.rng.chance(world.mood_.zeroes);
  const Kind usual =
      world.rng.pick({Kind::write, Kind::write, Kind::read, Kind::read, Kind::flush});
  const Kind other = zeroes ? world.rng.pick({Kind::zero, Kind::extents}) : usual;
  const Kind kind = replaced ? Kind::read : other;
  const std::uint64_t begin = world.rng.below(sectors);
  const mirror::Range range{begin, world.rng.between(begin + 1, std::min(begin + 5, sectors))};
  const std::uint64_t operation = next_request++;
  requests[operation] = {kind, range};
  const std::uint64_t value = kind == Kind::write ? world.next_value++ : 0;
  memory[operation] = Values(range.end - range.begin, value);
  const bool changes = kind == Kind::write || kind == Kind::zero;
  if (changes && !astray) world.checker.begin(number, operation, range, value);
  if (kind == Kind::flush && !astray) world.checker.begin_flush(number, operation);
  if (mirror::shows(kind) && !astray) world.checker.begin_read(number, operation);
  group.submit(kind, operation, range);
}

}  // namespace sim
