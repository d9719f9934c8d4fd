#include "bridge/server/writer_turns.hpp"

#include <algorithm>
#include <cerrno>

#include "rdma/core/plant.hpp"

namespace rnbd {
namespace {

constexpr wire::Uuid kUnknown{};
/// Of clients that came back too late, until somebody opens the storage anew.
constexpr std::size_t kMostParts = 32;
/// Who is forgotten counts as one from another life of the server.
constexpr std::size_t kMostKnown = 1024;

}  // namespace

std::uint32_t WriterTurns::number_of(const wire::Uuid& session) const {
  const auto part = std::ranges::find(record_.parts, session, &WriterRecord::Part::session);
  return part == record_.parts.end() ? 0 : part->number;
}

std::uint64_t WriterTurns::serial_of(const wire::Uuid& session) const {
  const std::uint32_t number = takes_part(session) ? number_of(session) : record_.last;
  return std::uint64_t{record_.origin} << 32 | number;
}

void WriterTurns::set_record(WriterRecord record) {
  record_ = std::move(record);
  if (known_.size() > kMostKnown) known_.clear();
  for (const WriterRecord::Part& part : record_.parts) known_.insert(part.session);
}

/// Numbers that begin with this life of the server are compared with none of another one.
bool WriterTurns::compares_numbers(const wire::Uuid& session, std::uint32_t life) const {
  return (record_.origin != 0 && record_.origin != life) || known_.contains(session);
}

WriterRecord WriterTurns::with(const wire::Uuid& session, Coming coming, std::uint32_t life) const {
  WriterRecord record = record_;
  // Who finds a new number will not write: whoever did meanwhile keeps what he has.
  const bool alone = coming != Coming::again || !compares_numbers(session, life) ||
                     record.parts.size() >= kMostParts;
  const bool there = is_there(session);
  std::erase_if(record.parts, [&](const auto& part) {
    return (part.session == session && !there) || (alone && !is_there(part.session));
  });
  if (there) return record;
  if (record.origin == 0) record.origin = life;
  ++record.last;
  if (session != kUnknown) record.parts.push_back({session, record.last});
  return record;
}

void WriterTurns::vanish(const wire::Uuid& session) {
  if (--there_[session] == 0) there_.erase(session);
}

bool WriterTurns::leave(const wire::Uuid& session, bool closed) {
  vanish(session);
  if (is_there(session)) return false;
  if (RTRS_PLANTED(part_outlives_leaving)) return false;
  const bool others_take_part = record_.parts.size() > (takes_part(session) ? 1 : 0);
  if (!anybody_there() && !(closed && others_take_part)) return false;
  return std::erase_if(record_.parts, [&](const auto& part) { return part.session == session; }) >
         0;
}

int WriterCount::take(wire::AccessMode mode) {
  const unsigned limit = mode == wire::AccessMode::migration ? 2 : 1;
  if (count_ >= limit) return EPERM;
  ++count_;
  return 0;
}

}  // namespace rnbd
