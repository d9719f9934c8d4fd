#include "bridge/server/writer_turns.hpp"

#include <cerrno>

namespace rnbd {

int WriterCount::take(wire::AccessMode mode) {
  const unsigned limit = mode == wire::AccessMode::migration ? 2 : 1;
  if (count_ >= limit) return EPERM;
  ++count_;
  return 0;
}

WriterTurn WriterCount::turn_with(const wire::Uuid& session, std::uint32_t origin) const {
  WriterTurn next = turn.value_or(WriterTurn{});
  if (next.is_of(session)) return next;
  const bool shared = count_ > 1 && next.number != 0;
  if (shared) {
    if (next.holders[1] != wire::Uuid{}) next.holders[0] = next.holders[1];
    next.holders[1] = session;
    return next;
  }
  if (next.number == 0) next.origin = origin;
  next.number = next.number + 1;
  next.holders = {session, wire::Uuid{}};
  return next;
}

}  // namespace rnbd
