// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/writer_reservations.hpp"

#include <algorithm>
#include <cerrno>

namespace rnbd {
namespace {

constexpr wire::Uuid kUnknown{};
/// The most reservations, including those of clients that returned too late; a new OPEN ends these.
constexpr std::size_t kMostParts = 32;

/// Each of them takes one number at most when it comes again.
bool is_remembered(const WriterRecord& record, const WriterRecord::Part& expelled) {
  return record.last - expelled.number <= record.expelled.size();
}

void forget_expelled(WriterRecord& record) {
  const WriterRecord before = record;
  std::erase_if(record.expelled, [&](const auto& each) { return !is_remembered(before, each); });
}

}  // namespace

std::uint32_t WriterReservations::number_of(const wire::Uuid& session) const {
  const auto part = std::ranges::find(record_.parts, session, &WriterRecord::Part::session);
  return part == record_.parts.end() ? 0 : part->number;
}

bool WriterReservations::is_late(const wire::Uuid& session) const {
  const std::uint32_t number = number_of(session);
  return is_there(session) && session != kUnknown && (number == 0 || (number & kLate) != 0);
}

std::uint64_t WriterReservations::serial_of(const wire::Uuid& session) const {
  const std::uint32_t number = number_of(session);
  if (number != 0) return std::uint64_t{record_.origin} << 32 | number;
  const bool known = session != kUnknown || record_.origin == 0;
  return last_serial() | (known && is_there(session) ? kLate : 0);
}

WriterRecord WriterReservations::with(const wire::Uuid& session, OpenKind open_kind,
                                      std::uint32_t origin, const wire::Uuid& claim) const {
  WriterRecord record = record_;
  // A session with a new number will not write, unless it is the first number of all. Other writers
  // keep their reservations.
  const bool alone = open_kind != OpenKind::again || record.parts.size() >= kMostParts;
  const bool there = is_there(session);
  const bool keeps = there && (open_kind != OpenKind::anew || !is_late(session));
  std::erase_if(record.parts, [&](const auto& part) {
    return (part.session == session && !keeps) || (alone && !is_there(part.session));
  });
  if (keeps) {
    record.claim = {};  // this is another device of the session
    return record;
  }
  const bool late = open_kind == OpenKind::again && record.origin != 0;
  if (record.origin == 0) record.origin = origin;
  ++record.last;
  const bool alone_now = record.parts.empty() && session != kUnknown && !there;
  record.claim = alone_now && !late ? claim : wire::Uuid{};
  const std::uint32_t number = late ? record.last | kLate : record.last;
  if (session != kUnknown) record.parts.push_back({session, number});
  forget_expelled(record);
  return record;
}

bool WriterReservations::was_granted(const wire::Uuid& session, const wire::Uuid& claim) const {
  if (record_.claim == wire::Uuid{}) return false;
  return record_.claim == claim && record_.parts.size() == 1 && number_of(session) == record_.last;
}

void WriterReservations::vanish(const wire::Uuid& session) {
  if (--there_[session] == 0) there_.erase(session);
}

bool WriterReservations::leave(const wire::Uuid& session, bool closed) {
  vanish(session);
  if (is_there(session)) return false;
  const bool others_take_part = record_.parts.size() > (takes_part(session) ? 1 : 0);
  if (!anybody_there() && !(closed && others_take_part)) return false;
  if (std::erase_if(record_.parts, [&](const auto& part) { return part.session == session; }) == 0)
    return false;
  record_.claim = {};
  return true;
}

bool WriterReservations::expel(const wire::Uuid& session) {
  if (!takes_part(session)) return false;
  std::erase_if(record_.parts, [&](const auto& part) { return part.session == session; });
  ++record_.last;  // is its number as long as it has none of its own
  record_.claim = {};
  forget_expelled(record_);
  std::vector<WriterRecord::Part>& expelled = record_.expelled;
  std::erase_if(expelled, [&](const auto& each) { return each.session == session; });
  if (expelled.size() >= kMostParts) expelled.erase(expelled.begin());
  expelled.push_back({session, record_.last});
  return true;
}

bool WriterReservations::was_expelled(const wire::Uuid& session) const {
  const auto found = std::ranges::find(record_.expelled, session, &WriterRecord::Part::session);
  return found != record_.expelled.end() && is_remembered(record_, *found);
}

int WriterCount::take(wire::AccessMode mode) {
  const unsigned limit = mode == wire::AccessMode::migration ? 2 : 1;
  if (count_ >= limit) return EPERM;
  ++count_;
  return 0;
}

}  // namespace rnbd
