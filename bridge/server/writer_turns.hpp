// Who may write to a storage, and whose turn at it it is.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tl/expected.hpp>

#include "bridge/protocol/messages.hpp"
#include "rdma/wire/endian.hpp"

namespace rnbd {

/// A turn lasts until a session opens the storage for writing that has no part in it: who opens it
/// again in another turn than before must not repeat what was under way then.
struct WriterTurn {
  rtrs::wire::le32 origin = 0;  ///< of the count; never 0 once there was a turn
  rtrs::wire::le32 number = 0;
  /// Sessions that have a part in it, in the order in which they came; two while a machine
  /// migrates.
  std::array<wire::Uuid, 2> holders{};

  bool is_of(const wire::Uuid& session) const {
    return number != 0 && session != wire::Uuid{} &&
           (holders[0] == session || holders[1] == session);
  }
  std::uint64_t serial() const { return std::uint64_t{origin} << 32 | number; }
};
static_assert(sizeof(WriterTurn) == 40);

/// Remembers turns across lives of the server. What is under way at a client when the server ends
/// comes again in its next life, whoever has written meanwhile.
///
/// Threads: one at a time.
class TurnStore {
 public:
  virtual ~TurnStore() = default;
  /// None: there was no turn. May block.
  ///
  /// Errors: what is in the way of knowing it.
  virtual tl::expected<std::optional<WriterTurn>, std::string> load(const wire::Uuid& storage) = 0;
  /// Durable when it returns. May block.
  ///
  /// Errors: what is in the way.
  virtual tl::expected<void, std::string> save(const wire::Uuid& storage,
                                               const WriterTurn& turn) = 0;
};

/// How many mappings may write to one storage, over all its names and all sessions, and the turn.
///
/// Threads: its catalogue's lock.
class WriterCount {
 public:
  /// rw excludes every other writer; two may write while a machine migrates, because the old and
  /// the new host have the device open for a moment. Returns 0 or EPERM.
  int take(wire::AccessMode mode);
  void give_back() { --count_; }

  /// None: nobody has looked yet what the store remembers.
  std::optional<WriterTurn> turn;

  /// The turn with a part for this session, which has the storage open for writing: the present one
  /// if it has a part already or shares the storage with one that has, otherwise the next.
  WriterTurn turn_with(const wire::Uuid& session, std::uint32_t origin) const;

 private:
  unsigned count_ = 0;
};

}  // namespace rnbd
