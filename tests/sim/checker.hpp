// The rules of block storage, checked from outside: what clients were told against what the disks
// went through.
#pragma once

#include <cstdint>
#include <vector>

#include "bridge/protocol/messages.hpp"
#include "tests/sim/disk.hpp"
#include "tests/sim/world.hpp"

namespace sim {

using OperationId = std::uint64_t;  ///< from 1 on; 0 is nobody's

/// What a client asks for.
struct OperationPlan {
  Action action = Action::read;
  unsigned disk = 0;
  std::uint64_t first = 0;  ///< sector
  std::uint32_t count = 0;  ///< sectors; 0 for a flush
  bool fua = false;
  bool no_unmap = false;
  bool fast = false;
  bool allowed = true;        ///< by the access mode of the opening
  std::uint64_t session = 0;  ///< serial number of the client's session
  std::uint64_t opening = 0;  ///< serial number of the successful OPEN
};

/// Each sector is a register. The storage tells when it executes something, clients tell when they
/// asked and what they were told:
/// - whatever executes was asked for: this value, this sector, this opening, once, and not after
///   its end was told or its session was gone;
/// - what was acknowledged has executed in between; what was promised durable survives;
/// - a read returns, for each sector, a value that the sector had in between;
/// - errors are told only where one happened.
class Checker {
 public:
  Checker(World& world, std::vector<Disk>& disks) : world_{world}, disks_{disks} {}

  OperationId begin(const OperationPlan& plan);
  /// The client has its answer; `data` is what a read brought.
  void finish(OperationId id, int error, std::span<const std::byte> data);
  /// The answer to a question about holes, which was begun as a read.
  void finish_status(OperationId id, int error, const std::vector<rnbd::wire::Extent>& extents);
  /// The client will never know: given up, or the session died.
  void abandon(OperationId id);
  bool pending(OperationId id) const { return of(id).state == State::pending; }

  // The storage.
  void executes(unsigned disk, std::uint64_t sector, Action action, Stamp value, bool no_unmap);
  /// An operation on this range is about to fail with `error`.
  void fails(unsigned disk, Action action, std::uint64_t first, std::uint64_t count, int error);

  // Openings and sessions.
  /// `asked`: when the client asked. `fresh`: the session cannot have had it open already, by an
  /// OPEN that it gave up.
  std::uint64_t opened(unsigned disk, std::uint64_t session, rnbd::wire::AccessMode mode,
                       Instant asked, bool fresh);
  void closing(std::uint64_t opening);
  void closed(std::uint64_t opening);
  /// The server has let go of everything that belongs to the session.
  void session_gone(std::uint64_t session);
  bool is_gone(std::uint64_t session) const;

  std::uint64_t operations() const { return operations_.size(); }

 private:
  enum class State : std::uint8_t { pending, done, failed, abandoned };
  struct Operation {
    OperationPlan plan;
    State state = State::pending;
    /// Per sector: the position of its newest value when the operation began.
    std::vector<std::uint32_t> start;
    /// A write, per sector: the position of its value; 0 = not executed yet.
    std::vector<std::uint32_t> executed;
    /// A flush: what it has to make durable, for each sector of the disk.
    std::vector<std::uint32_t> covers;
    std::vector<int> errors;  ///< that may be told
  };
  struct Opening {
    unsigned disk = 0;
    std::uint64_t session = 0;
    rnbd::wire::AccessMode mode{};
    Instant since{};  ///< the client knew of it
    bool closing = false;
    bool closed = false;
    bool holds = false;  ///< for certain, as far as a client can know
  };

  Operation& of(OperationId id) { return operations_[id - 1]; }
  const Operation& of(OperationId id) const { return operations_[id - 1]; }
  void violate(OperationId id, const std::string& rule);
  bool had(const Operation& operation, std::uint32_t index, Stamp value) const;
  bool may_execute(const Operation& operation) const;
  void executes_write(unsigned disk, std::uint64_t sector, Stamp value);
  void executes_zeroing(unsigned disk, std::uint64_t sector, Action action, bool no_unmap);
  void check_error(OperationId id, int error);
  void check_read(OperationId id, std::span<const std::byte> data);
  void check_change(OperationId id);
  void settle_flush(OperationId id);
  void promise(OperationId id, std::uint64_t number, std::uint32_t position);
  void forget_active(OperationId id);

  World& world_;
  std::vector<Disk>& disks_;
  std::vector<Operation> operations_;
  std::vector<OperationId> active_;  ///< pending, or abandoned and possibly still to execute
  std::vector<Opening> openings_;
  std::vector<bool> gone_;  ///< by session
};

}  // namespace sim
