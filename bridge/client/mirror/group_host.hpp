// SPDX-License-Identifier: BSD-3-Clause
// The orders of a mirror group to its members, and the interface to its executor.
#pragma once

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <vector>

#include "bridge/client/mirror/verification.hpp"
#include "bridge/protocol/mirror.hpp"

namespace rnbd::mirror {

/// A client's orders to a member.
enum class Order : std::uint8_t {
  claim,
  inspect,  ///< fails with ENOTEMPTY unless the whole disk is known to read as zeroes
  view,
  confirm,
  echo,  ///< do nothing
  maps,  ///< return the activity log and the dirty maps
  read,  ///< `range` into the memory of `operation`; of one of the group, the member's part of it
  extents,  ///< which parts of `range` read as zeroes, likewise
  zero,     ///< zeroes in `range`, and into the activity log. EOPNOTSUPP: only by `write`
  write,    ///< `range` from that memory, and into the activity log; likewise, the part of `source`
  copy,     ///< likewise, to a member that is not in step
  pull,     ///< likewise, but the member reads it from `source` by itself
  clear,    ///< zeroes in `range`, as a copy. EOPNOTSUPP: not without writing them
  flush,
  beat,      ///< count up to `age`, before regions leave the activity log
  cool,      ///< take `regions` out of the activity log; all have counted up to `age`
  dissolve,  ///< be no member any more: the record goes
  room,      ///< return how large its own disk is
  grow,      ///< a claim once more, of a disk of `size` that had `base`; only in this `view`
};

struct Command {
  std::uint64_t tag = 0;  ///< comes back with the answer
  Order order{};
  unsigned member = 0;
  std::uint64_t session = 0;  ///< with the member; it must not perform commands of an older one
  std::uint64_t term = 0;
  View view{};
  View confirmed{};
  std::vector<RegionMap> inherit{};
  RegionMap regions{};
  Range range{};
  std::uint64_t operation = 0;
  unsigned source = 0;     ///< member that is read, or whose data are written
  std::uint64_t disk = 0;  ///< of that one, for a pull: another server may answer at its address
  Pedigree pedigree{};     ///< of the view
  std::vector<std::uint64_t> disks{};  ///< claim of the vote: disks of the mirror, 15 at most
  Age age{};                           ///< to which the member counts
  // Of a claim, and of a view: bytes of the group's disk.
  std::uint64_t size = 0;
  std::uint64_t base = 0;  ///< before it grows
};

struct Answer {
  std::uint64_t tag = 0;
  int error = 0;      ///< positive errno
  Claimed claimed{};  ///< answer to a claim, granted or refused; to `grow` only the size
  Maps maps{};        ///< answer to the order `maps`
  // Answer to the order `extents` of one of the group's own operations, in sectors from the
  // beginning of the range on.
  std::vector<Range> zeroes{};  ///< in their order; none touches the next one
  std::uint64_t told = 0;       ///< the end of what is told
  std::uint64_t room = 0;       ///< answer to the order `room`: bytes
};

/// True if a member has no answer to the order `extents`, which is only a hint, so that data may be
/// anywhere. A bad disk, or another client that has claimed it, is more than that.
constexpr bool lacks_hint(Order order, int error) {
  return order == Order::extents && error != 0 && error != EIO && error != ESTALE;
}

/// The lease of reads. A member that has carried out an order served this client after the order
/// was sent. Another client can have claimed it since, and a client that stood still does not know
/// that. So its reads are answered while all members in step have shown within this time, or since
/// the read was submitted, that they serve it.
inline constexpr std::chrono::milliseconds kReadLease{1000};
/// A client that goes on without a member of the newest view waits for so long after its claims.
/// Then no other one answers reads of that member. It is longer, as clocks differ. Nothing else
/// lasts long enough: a server forgets a client without a path as soon as another one comes.
inline constexpr std::chrono::milliseconds kReadLeaseEnd{1250};
static_assert(kReadLease < kReadLeaseEnd);

/// The surroundings of a group. None of these calls back.
class GroupHost {
 public:
  virtual ~GroupHost() = default;
  virtual void send(const Command& command) = 0;
  /// Ends the session with a member. Its orders get no answers any more, and the member refuses
  /// late ones. link_up() announces a new session.
  virtual void drop(unsigned member) = 0;
  virtual void attached() = 0;
  /// The operation has ended. For one that the group began itself, its memory can be freed.
  virtual void done(std::uint64_t operation) = 0;
  /// The same, but no member in step could perform the operation, or all have refused it with this
  /// error. `error`: positive errno.
  virtual void failed(std::uint64_t operation, int error) = 0;
  /// Those of the members, all of which have been read for the operation, whose data are the same
  /// as the data of `source`.
  virtual MemberSet same(std::uint64_t operation, MemberSet members, unsigned source) = 0;
  /// Members in step have other data than `reference` has, or their disks cannot read them. The
  /// operation holds its range still.
  virtual void differs(const Difference& found) = 0;
  /// False: begin no further copy that no request waits for until work(). `under_way`: so many
  /// copies to the same member have begun.
  virtual bool may_copy(unsigned under_way) = 0;
  /// There are requests of users, or there were a moment ago.
  virtual bool has_requests() = 0;
  /// Disks that have carried out an order which was sent less than kReadLease ago.
  virtual MemberSet leased() = 0;
  /// True if no session got a disk in the last kReadLeaseEnd. A further claim of the same session
  /// does not count: other clients were kept from that disk in between.
  virtual bool leases_ended() = 0;
  /// The disk is larger from now on, see Group::disk_size().
  virtual void grown() = 0;
  /// The disk was to be larger, and keeps its size, as this member has not recorded a larger one.
  /// Without an error it knows no growth. kMaxMembers: operations were under way for too long.
  virtual void not_grown(unsigned member, int error) = 0;
  /// The end of what dissolve() began. 0: the member is a disk of its own, and the group is over.
  /// ECANCELED: the members go on as a mirror. EIO: the member may be either.
  virtual void dissolved(int error) = 0;
  /// Too few members are left: no operation ends any more.
  virtual void over() = 0;
  /// The same, as an operator has had another client go on with other members. Attaching again can
  /// show older data than users have seen.
  virtual void superseded() = 0;
};

struct GroupOptions {
  unsigned members = 2;                 ///< disks
  bool vote = false;                    ///< behind the last disk: a member that has no copy
  std::uint64_t region_sectors = 2048;  ///< of each region; the last one may be shorter
  /// Of the disk, in bytes: no more than the record of any member says, where that is known. The
  /// records of those that attach decide.
  std::uint64_t size = 0;
  std::uint32_t granule = 512;     ///< bytes; a disk of a multiple grows to another one
  std::uint32_t most_regions = 0;  ///< it grows up to these; 0: it does not
  Degraded degraded = Degraded::allow;
  std::uint64_t unit_sectors = 512;  ///< of one copy; a region has one unit at least
  std::uint32_t span = 256;          ///< regions that are cleared at once; 0: none ever is
  std::uint32_t span_beside = 8;     ///< the same, while there are requests: they are locked
  std::uint64_t first_session = 1;   ///< sessions count up from here; unique among all clients
};

}  // namespace rnbd::mirror
