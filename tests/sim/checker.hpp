// SPDX-License-Identifier: BSD-3-Clause
// The rules of block storage, checked from outside: what clients were told against what the disks
// went through.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "bridge/protocol/messages.hpp"
#include "tests/sim/disk.hpp"
#include "tests/sim/world.hpp"

namespace sim {

using OperationId = std::uint64_t;  ///< from 1 on; 0 is nobody's

/// A client's request.
struct OperationPlan {
  Action action = Action::read;
  unsigned disk = 0;
  std::uint64_t first = 0;  ///< sector
  std::uint32_t count = 0;  ///< sectors; 0 for a flush
  bool fua = false;
  bool no_unmap = false;
  bool fast = false;
  bool allowed = true;        ///< by the access mode of the opening
  bool offered = true;        ///< false: the storage has no flush
  bool may_repeat = false;    ///< the server keeps no memory of what it carried out
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
  Checker(World& world, Disks& disks) : world_{world}, disks_{disks} {}

  OperationId begin(const OperationPlan& plan);
  /// The client has its answer; `data` is what a read brought.
  void finish(OperationId id, int error, std::span<const std::byte> data);
  /// The answer to a question about holes, which was begun as a read.
  void finish_status(OperationId id, int error, const std::vector<rnbd::wire::Extent>& extents);
  /// The client will never know: given up, or the session died. `failed`: it was told an error, and
  /// that newer changes would not be undone.
  void abandon(OperationId id, bool failed = false);
  bool pending(OperationId id) const { return of(id).state == State::pending; }

  // The storage.
  void executes(unsigned disk, std::uint64_t sector, Action action, Stamp value, bool no_unmap);
  /// An operation on this range is about to fail with `error`.
  void fails(unsigned disk, Action action, std::uint64_t first, std::uint64_t count, int error);

  // Openings and sessions.
  /// When a user learnt what a disk holds, and in which life of the server.
  struct Look {
    Instant at{};
    unsigned life = 0;
  };
  /// `asked`: when the client asked. `fresh`: the session cannot have had it open already, by an
  /// OPEN that it gave up.
  /// `knows_losses`: its server says when its machine was restarted. `knows_writers`: and who
  /// opened it for writing.
  struct Knows {
    bool losses = false;
    bool writers = false;
  };
  std::uint64_t opened(unsigned disk, std::uint64_t session, rnbd::wire::AccessMode mode,
                       Instant asked, bool fresh, Knows knows);
  void closing(std::uint64_t opening);
  void closed(std::uint64_t opening);
  /// A session that never got anywhere may be made again.
  void session_up(std::uint64_t session);
  /// The client opens again what it had open when the server forgets the session.
  void renews(std::uint64_t session);
  /// Like Linux's clients, it sends again what may still execute.
  void resends_at_once(std::uint64_t session);
  bool may_resend(std::uint64_t session) const;
  /// It has done so. `asked`: when the client asked.
  void reopened(std::uint64_t opening, Instant asked);
  /// An opening without reservation, for this model one to read, may be written to by the client
  /// from here on: it knows that nobody else has since it was opened, and nobody else does.
  void claimed(std::uint64_t opening, Instant asked, const Look& look);
  /// Its session had claimed the opening before a user changes it who looked then.
  void shares_claim(std::uint64_t opening, const Look& look);
  /// A user has been told what there is to see.
  Look look() const { return {world_.now(), life_}; }
  bool anybody_asked(unsigned slot) const {
    return slot < writers_.size() && !writers_[slot].empty();
  }
  /// The client is about to ask for it for itself.
  void asks_to_write(unsigned slot, std::uint64_t session);
  /// Whether there is a reason to say that an opening shows something else than before.
  bool may_be_stale(std::uint64_t opening) const;
  /// A new process; it remembers nothing.
  void server_started() {
    ++life_;
    server_ends_ = false;
  }
  /// Those that it cuts off from here on may all come back.
  void server_ends() { server_ends_ = true; }
  /// The disk has forgotten what was not durable.
  void power_lost(unsigned disk);
  /// The server has let go of everything that belongs to the session.
  void session_gone(std::uint64_t session);
  bool is_gone(std::uint64_t session) const;

  std::uint64_t operations() const { return operations_.size(); }

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};

  enum class State : std::uint8_t { pending, done, failed, abandoned };
  struct Operation {
    OperationPlan plan;
    State state = State::pending;
    /// Per sector: the position of its newest value when the operation began.
    std::vector<std::uint32_t> start;
    /// A change, per sector: the position of its value, the first that was not lost; 0 = not
    /// executed yet. Of changes without data it is known when they are acknowledged.
    std::vector<std::uint32_t> executed;
    /// A write, per sector: executed in this life of its session.
    std::vector<bool> executed_here;
    std::uint64_t began = 0;       ///< moments
    std::uint64_t told = 0;        ///< likewise
    bool may_be_lost = false;      ///< acknowledged, and not durable by itself
    std::vector<bool> known_lost;  ///< per sector, once one is
    std::uint64_t failed = 0;  ///< the moment when it was told so, although it may still execute
    bool over = false;         ///< abandoned, and all that could execute it is gone
    /// A flush: what it has to make durable, for each sector of the disk.
    std::vector<std::uint32_t> covers;
    std::vector<int> errors;  ///< that may be told
  };
  struct Opening {
    unsigned disk = 0;
    std::uint64_t session = 0;
    rnbd::wire::AccessMode mode{};
    Instant since{};        ///< the client knew of it; when it was opened last
    Instant first_since{};  ///< the same when it was opened first
    Instant first_asked{};  ///< for that
    Instant lost{};         ///< when its server forgot it last
    bool outlived = false;  ///< others had it for writing then, and the server lived on
    bool held = false;      ///< it held once, for certain
    bool closing = false;
    bool closed = false;
    bool holds = false;  ///< for certain, as far as a client can know
    Knows knows;
    unsigned life = 0;             ///< of the server when it was opened last
    unsigned first_life = 0;       ///< likewise, first
    bool dirty = false;            ///< a change was asked for that is not durable by itself
    std::uint64_t reopened = 0;    ///< the moment of the last time
    std::uint64_t power_loss = 0;  ///< the moment of one that no flush has told of
    std::uint64_t learnt = 0;      ///< when the client could know of the last one
    /// When the first change was acknowledged that was lost, as no flush has told yet.
    std::uint64_t first_lost = kNever;
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
  bool is_loss_told(OperationId id, int error);
  void note_losses(Operation& operation);
  void check_look(const Opening& opening, const Look& look, const char* what);
  void check_writers_again(Opening& opening, Instant asked);
  bool others_write(const Opening& opening) const;
  void check_writers(unsigned disk, std::uint64_t session, rnbd::wire::AccessMode mode,
                     Instant asked);
  void promise(OperationId id, std::uint64_t number, std::uint32_t position);
  void forget_active(OperationId id);

  World& world_;
  Disks& disks_;
  std::vector<Operation> operations_;
  std::vector<OperationId> active_;  ///< pending, or abandoned and possibly still to execute
  std::vector<Opening> openings_;
  std::vector<bool> gone_;     ///< by session
  std::vector<bool> used_;     ///< by session: something was asked for in it
  std::vector<bool> resends_;  ///< by session
  std::vector<bool> renews_;   ///< by session
  std::uint64_t moment_ = 0;   ///< counts what clients ask and are told, and losses of power
  unsigned life_ = 0;          ///< of the server
  struct LastWrite {
    Instant executed{};
    unsigned life = 0;
    bool shares = false;  ///< in access mode migration: beside one who has the right to write
  };
  std::map<std::pair<unsigned, std::uint64_t>, LastWrite> last_writes_;  ///< by disk and session
  bool server_ends_ = false;
  std::vector<std::vector<std::pair<std::uint64_t, Instant>>>
      writers_;  ///< by export: who came when
};

}  // namespace sim
