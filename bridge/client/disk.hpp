// SPDX-License-Identifier: BSD-3-Clause
// The interface of a disk: a device of one server, or what an annex makes of several or of one.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bridge/client/changes_under_way.hpp"
#include "bridge/client/device_handle.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/client/transfer.hpp"
#include "rdma/client.hpp"

namespace rnbd {

/// Options of write_zeroes.
struct ZeroOptions {
  bool fua = false;
  bool may_unmap = false;  ///< the blocks may be given back
  bool fast = false;       ///< EOPNOTSUPP unless it is faster than writing zeroes
};

/// A disk as one user leaves it to a successor in another process.
struct LeftDisk {
  std::string name;
  std::uint64_t size = 0;  ///< bytes, as the user knows it
  wire::Uuid export_uuid{};
  bool read_only = false;  ///< for this user
  bool writer = false;     ///< this process had the right to change it
  bool unflushed = false;  ///< answered writes may not be durable
  bool lost = false;       ///< some may be lost, and this user has not heard of that
  Witness witness{};       ///< a writer's is the process's, another user's what it has seen
  std::uint64_t volatile_epoch = 0;
};

/// The lanes that a disk offers to event loops.
class LaneSource {
 public:
  virtual ~LaneSource() = default;
  /// The number is constant.
  virtual unsigned lanes() const = 0;
  /// Each lane belongs to one loop at a time.
  virtual std::unique_ptr<rtrs::LaneLoop> take_lane(unsigned lane) = 0;
};

/// One user's access to a disk. Offsets and lengths are bytes and need no alignment: partial blocks
/// are read, changed and written back, without other changes in between. Rights, ends and abilities
/// are checked here for all kinds of disks, which perform whole blocks.
///
/// Every call blocks until its answer is there.
/// Errors:  0 for success, else an errno: the server's own, EIO (no answer will come), EINTR
///          (interrupted), EROFS (opened ro), EINVAL (range outside the disk), EOPNOTSUPP (the
///          server cannot).
/// Threads: any.
class Disk {
 public:
  /// Closes the disk after its last user, and waits a short time for the server.
  virtual ~Disk() = default;
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  /// The geometry that this user knows. Its size dates from the opening, or from the last refresh.
  const DeviceGeometry& geometry() const { return geometry_; }
  virtual const std::string& name() const = 0;
  bool read_only() const { return read_only_ || geometry_.read_only; }
  /// Describes the user's access, for people.
  virtual const char* access_in_words() const = 0;
  /// The lanes for transfers after begin().
  virtual std::shared_ptr<LaneSource> lane_source() = 0;

  /// Asks the server for the size, and takes over growth since the opening. If the server cannot be
  /// asked, nothing changes. Other users of the disk keep the size that they know.
  ///
  /// Errors:  EINTR, EPROTO (nonsense from the server).
  /// Threads: the user's, before the first request.
  virtual tl::expected<void, rtrs::Failure> look_again(const rtrs::Interrupt& interrupt) = 0;

  /// This user sends no requests, and is not counted as a user for people. Once at most.
  virtual void only_observe() {}
  /// Takes over a size that another user has found. A smaller one changes nothing.
  ///
  /// Threads: its user's, while no call is under way.
  virtual void grow_to(std::uint64_t size) { grow(geometry_, size); }

  /// None: nobody can go on where this user ends.
  virtual std::optional<LeftDisk> leave_behind() const { return std::nullopt; }
  /// This user goes on where one of another process has ended. Returns "" or the reason why it must
  /// not: requests that were made for the disk there would not be right for this one. If the server
  /// may have lost writes, the next flush fails, once. May wait for a second.
  ///
  /// Threads: the user's, before the first request.
  virtual std::string go_on_from(const LeftDisk& /*left*/, const rtrs::Interrupt& /*interrupt*/) {
    return "disks of this kind are not handed over";
  }

  int read(std::uint64_t offset, rtrs::MutableBytes data, const rtrs::Interrupt& interrupt);
  int write(std::uint64_t offset, rtrs::ConstBytes data, bool fua,
            const rtrs::Interrupt& interrupt);
  /// Makes all answered writes durable, of every connection. If some of them may have been lost, it
  /// returns EIO once.
  virtual int flush(const rtrs::Interrupt& interrupt) = 0;
  /// Says that the content is no longer needed. Partial blocks at the ends are left alone.
  int discard(std::uint64_t offset, std::uint64_t length, bool fua,
              const rtrs::Interrupt& interrupt);
  /// Uses the server's own zeroing when that does exactly the requested thing, else writes zeroes.
  int write_zeroes(std::uint64_t offset, std::uint64_t length, ZeroOptions options,
                   const rtrs::Interrupt& interrupt);
  /// Performs a read or a change of any bytes, as the calls above. `transfer` is no flush.
  int run(Transfer transfer, const rtrs::Interrupt& interrupt);
  /// Finds data and holes. Appends at most `max_extents` adjacent runs, which start at `offset` and
  /// end inside the range. Their borders are multiples of DeviceGeometry::user_block(). They may
  /// cover less than the range, but never nothing.
  virtual int extents(std::uint64_t /*offset*/, std::uint64_t /*length*/,
                      std::size_t /*max_extents*/, std::vector<wire::Extent>& /*extents*/,
                      const rtrs::Interrupt& /*interrupt*/) {
    return EOPNOTSUPP;
  }
  /// Asks the server to read ahead.
  virtual int cache(std::uint64_t /*offset*/, std::uint64_t /*length*/,
                    const rtrs::Interrupt& /*interrupt*/) {
    return EOPNOTSUPP;
  }

  /// State from begin() for end().
  struct Begun {
    std::optional<ChangesUnderWay::Place> place;  ///< of a change
    UnflushedWrites::Flush flush;
  };
  /// The same for event loops, which never wait. They run a TransferOperation over geometry() and
  /// handle() themselves, between begin() and end(). begin() may shrink the transfer, even to
  /// nothing.
  ///
  /// Errors: EAGAIN (use the blocking call), or the answer to the request.
  int begin(Transfer& transfer, Begun& begun);
  /// Returns the answer to the request; EAGAIN: use the blocking call. `error` is the result of the
  /// operation, EINTR when it was cancelled.
  int end(const Transfer& transfer, const Begun& begun, int error);
  /// The operation has ended, and end() follows later: changes of other users may enter meanwhile.
  ///
  /// Threads: any, until end().
  void let_others_in(Begun& begun) {
    leave(begun);
    begun.place.reset();
  }
  virtual DeviceHandle& handle() = 0;

  /// A change has to wait for the right to change the disk: begin() says EAGAIN.
  bool must_claim() const { return !may_change_.load(std::memory_order_relaxed); }
  /// Asks for that right now. Errors: as of a change.
  int claim_now(const rtrs::Interrupt& interrupt) { return must_claim() ? claim(interrupt) : 0; }
  /// The question for that right, on its way. It ends before the disk does.
  class Claim {
   public:
    virtual ~Claim() = default;
    /// For a lane.
    virtual rtrs::Operation& operation() = 0;
    /// The operation has ended with `error`, or was cancelled (EINTR). None: use the blocking call.
    /// Otherwise 0, or the answer to changes.
    virtual std::optional<int> end(int error) = 0;
  };
  struct BegunClaim {
    enum class State : std::uint8_t {
      granted,   ///< begin the change anew
      asking,    ///< `claim` is to be run
      joined,    ///< another user's question is under way, and `again` will be called
      refused,   ///< `error` is the answer to the change
      blocking,  ///< use the blocking call
    };
    State state = State::blocking;
    std::unique_ptr<Claim> claim = {};
    int error = 0;
  };
  /// Begins to ask for the right to change the disk, for event loops. `again` is called on any
  /// thread, once, and not inside this call; then the answer to the other user is known.
  virtual BegunClaim begin_claim(std::function<void()> /*again*/) { return {}; }

 protected:
  /// The ranges that perform() takes.
  enum class Takes : std::uint8_t {
    whole_blocks,  ///< aligned ranges; changes have entered
    any_bytes,     ///< the users' ranges; changes have not entered, and nothing is claimed
  };

  /// `changes`: of all users of the disk. `user`: the one that this user's changes count for.
  Disk(const DeviceGeometry& geometry, bool read_only, ChangesUnderWay& changes, const void* user,
       Takes takes = Takes::whole_blocks)
      : geometry_{geometry},
        read_only_{read_only},
        any_bytes_{takes == Takes::any_bytes},
        changes_{changes},
        user_{user} {}

  bool inside(std::uint64_t offset, std::uint64_t length) const {
    return offset <= geometry_.size && length <= geometry_.size - offset;
  }
  /// Enters a change of whole blocks. Errors: EAGAIN (another one overlaps it).
  int enter(const Transfer& transfer, Begun& begun) {
    begun.place = changes_.try_enter(user_, transfer.offset, transfer.offset + transfer.length);
    return begun.place ? 0 : EAGAIN;
  }
  void leave(const Begun& begun) {
    if (begun.place) changes_.leave(*begun.place);
  }

  DeviceGeometry geometry_;
  bool read_only_;
  std::atomic<bool> may_change_{true};  ///< no claim() is needed any more

 private:
  /// Performs a read or a change that has passed all checks.
  virtual int perform(const Transfer& transfer, const rtrs::Interrupt& interrupt) = 0;
  /// Claims the right to change the disk before the first change, and sets `may_change_`.
  virtual int claim(const rtrs::Interrupt& /*interrupt*/) { return 0; }
  /// Counts the sessions with the server. The parts of a change are done in one, or done again:
  /// parts answered in another one may be lost.
  virtual std::uint64_t era() const { return 0; }
  /// Judges a transfer that has passed the other checks of begin(). Errors: as begin().
  virtual int admit(const Transfer& /*transfer*/, Begun& /*begun*/) { return 0; }
  /// Returns the answer to a transfer that was begun, as end() does.
  virtual int ended(const Transfer& /*transfer*/, const Begun& /*begun*/, int error) {
    return error;
  }

  int read_parts(const Transfer& whole, const rtrs::Interrupt& interrupt);
  int read_partial(const Transfer& part, const rtrs::Interrupt& interrupt);
  int judge(const Transfer& change) const;
  void fit(Transfer& change) const;
  int change(Transfer& whole, const rtrs::Interrupt& interrupt);
  int change_blocks(const Transfer& transfer, const rtrs::Interrupt& interrupt);
  int change_parts(const Transfer& whole, const rtrs::Interrupt& interrupt);
  int patch(const Transfer& part, const rtrs::Interrupt& interrupt);

  const bool any_bytes_;
  ChangesUnderWay& changes_;
  const void* const user_;
};

}  // namespace rnbd
