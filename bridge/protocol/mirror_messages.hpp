// SPDX-License-Identifier: BSD-3-Clause
// Messages between a client and a member of a mirror group. Questions (CLAIM, REGIONS, GUEST, ROOM)
// are answered like BLOCK STATUS; orders (VIEW, CONFIRM, COOL, PULL) are carried out once.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/protocol/messages.hpp"
#include "bridge/protocol/mirror.hpp"

namespace rnbd::wire {

/// A feature of the user protocol's half: an export may be a member of a mirror group.
inline constexpr std::uint32_t kFeatureMirror = 1U << 18;
/// Likewise: members tell which disk they are, and how far they have come. Only such peers claim
/// and are claimed.
inline constexpr std::uint32_t kFeatureMirrorDisks = 1U << 20;
/// Likewise: the peer knows votes, which have no copy. A view with one is for such peers only.
inline constexpr std::uint32_t kFeatureMirrorVotes = 1U << 21;
inline constexpr std::uint32_t kMirrorFeatures =
    kFeatureMirror | kFeatureMirrorDisks | kFeatureMirrorVotes;

/// The name of what a server has of votes. It is no disk, and in no list.
inline constexpr std::string_view kVotesName = ".vote";
/// The identity of its storage, at every server.
inline constexpr Uuid kVotesUuid{'r', 'n', 'b', 'd', 'v', 'o', 't', 'e', 's'};

inline constexpr auto kMirrorClaim = MessageType{0x8021};
inline constexpr auto kMirrorClaimResponse = MessageType{0x8022};
inline constexpr auto kMirrorView = MessageType{0x8023};
inline constexpr auto kMirrorConfirm = MessageType{0x8025};
inline constexpr auto kMirrorRegions = MessageType{0x8027};
inline constexpr auto kMirrorRegionsResponse = MessageType{0x8028};
inline constexpr auto kMirrorCool = MessageType{0x8029};
inline constexpr auto kMirrorPull = MessageType{0x802B};
inline constexpr auto kMirrorGuest = MessageType{0x802D};
inline constexpr auto kMirrorGuestResponse = MessageType{0x802E};
inline constexpr auto kMirrorDissolve = MessageType{0x802F};
inline constexpr auto kMirrorRoom = MessageType{0x8031};
inline constexpr auto kMirrorRoomResponse = MessageType{0x8032};

struct MirrorViewFields {
  le64 term = 0;
  le32 seq = 0;
  le16 set = 0;
  le16 reserved = 0;
};
static_assert(sizeof(MirrorViewFields) == 16 && offsetof(MirrorViewFields, set) == 12);

/// The disk that holds a number, see mirror::Holder.
struct MirrorHolder {
  le64 disk = 0;
  le64 term = 0;  ///< of the newest view that it is known to have recorded
  le32 seq = 0;   ///< likewise
  le32 beat = 0;  ///< in that view
};
static_assert(sizeof(MirrorHolder) == 24 && offsetof(MirrorHolder, beat) == 20);

enum class MemberKind : std::uint8_t {
  disk = 0,
  vote = 1,  ///< of a group; its number is mirror::kVote, and its size 0
};

/// By number; those beyond the group's members are zeros, except for the vote's.
using MirrorPedigree = std::array<MirrorHolder, mirror::kMaxMembers>;

struct MirrorClaim {
  Header header;
  le32 device_id = 0;
  Uuid group{};
  Uuid claimant{};  ///< one life of a client: may ask again, the answer may have been lost
  le64 term = 0;
  // The group's shape. One with more members adds disks that have not been in a view yet.
  std::uint8_t member = 0;        ///< the number of this one
  std::uint8_t members = 0;       ///< without the vote
  std::uint8_t region_shift = 0;  ///< a region has 1 << region_shift bytes; for a new record
  MemberKind kind{};              ///< zero in older versions
  le32 seq = 0;   ///< of growth: in the view of this term and number; 0: of a claim without growth
  le64 size = 0;  ///< bytes of the group's disk: of the smallest member when it began or grew; of a
                  ///< vote 0
  le64 base = 0;  ///< the same before it grows; 0, or the end before: the client knows no growth
};
static_assert(sizeof(MirrorClaim) == 72 && offsetof(MirrorClaim, term) == 40);
static_assert(offsetof(MirrorClaim, member) == 48 && offsetof(MirrorClaim, kind) == 51);
static_assert(offsetof(MirrorClaim, seq) == 52 && offsetof(MirrorClaim, size) == 56);
/// The bytes of a claim by a client that knows no growth.
inline constexpr std::size_t kOldestMirrorClaim = offsetof(MirrorClaim, base);

/// The claim of a vote. It shows that the client has to do with the mirror that the record is of.
struct MirrorVoteClaim {
  MirrorClaim claim;
  std::array<le64, mirror::kVote> disks{};  ///< see mirror::Command; those beyond them are 0
};
static_assert(sizeof(MirrorVoteClaim) == 192 && offsetof(MirrorVoteClaim, disks) == 72);

enum MirrorFlag : std::uint8_t {
  kMirrorLostPower = 1,  ///< since its view; or it has never been in one
  kMirrorNew = 2,        ///< never in a view; only older servers say so, and the view tells it
  kMirrorRefused = 4,    ///< a client of `promised` has it, or another session of this one
  kMirrorPulls = 8,      ///< it carries PULLs out
};

/// Of a new group's disk. Its regions are this many at most, so that a map fits into a VIEW mostly.
inline constexpr std::uint32_t kMaxMirrorRegions = 1U << 20;
/// The same for one that has grown since.
inline constexpr std::uint32_t kMaxGrownRegions = 4 * kMaxMirrorRegions;
inline constexpr unsigned kMinRegionShift = 16;
inline constexpr unsigned kMaxRegionShift = 40;

/// Every member of a group computes the same.
struct MirrorShape {
  unsigned member = 0;
  unsigned members = 0;
  unsigned region_shift = 0;
  std::uint64_t size = 0;  ///< bytes
  bool is_vote() const { return size == 0; }
  std::uint64_t region_bytes() const { return std::uint64_t{1} << region_shift; }
  std::uint32_t regions() const {
    return static_cast<std::uint32_t>((size + region_bytes() - 1) >> region_shift);
  }
  friend bool operator==(const MirrorShape&, const MirrorShape&) = default;
};

/// 1 MiB, or more where a disk would have more than kMaxMirrorRegions of them.
unsigned region_shift_of(std::uint64_t size);

struct MirrorClaimResponse {
  Header header;
  std::uint8_t member = 0;
  std::uint8_t members = 0;       ///< of the group; `member` is below it, or the vote's number
  std::uint8_t region_shift = 0;  ///< a region has 1 << region_shift bytes
  std::uint8_t flags = 0;
  le64 promised = 0;  ///< the highest term that it knows
  Uuid claimant{};    ///< of that term
  MirrorViewFields view;
  MirrorViewFields confirmed;
  le32 active = 0;  ///< regions in its activity log
  le32 beat = 0;    ///< in its view
  le64 disk = 0;    ///< its identity
  MirrorPedigree pedigree{};
  le64 size = 0;  ///< bytes of the group's disk, by its record; 0 of servers that know no growth
};
static_assert(sizeof(MirrorClaimResponse) == 472 && offsetof(MirrorClaimResponse, view) == 32);
static_assert(offsetof(MirrorClaimResponse, disk) == 72);
/// Clients that know no growth ask for these bytes.
inline constexpr std::size_t kOldestMirrorClaimResponse = offsetof(MirrorClaimResponse, size);

/// Its data are the pedigree, then for each absent member k, in order, a REGIONS response: the
/// regions that k lacks.
struct MirrorView {
  Header header;
  le32 device_id = 0;
  MirrorViewFields view;
  MirrorViewFields confirmed;
  le64 size = 0;  ///< bytes of the group's disk; 0, or the end before: the client knows no growth
};
static_assert(sizeof(MirrorView) == 48 && offsetof(MirrorView, confirmed) == 24);
inline constexpr std::size_t kOldestMirrorView = offsetof(MirrorView, size);

struct MirrorConfirm {
  Header header;
  le32 device_id = 0;
  MirrorViewFields view;
};
static_assert(sizeof(MirrorConfirm) == 24);

struct MirrorRegions {
  Header header;
  le32 device_id = 0;
  le32 which = 0;  ///< 0: the activity log; 1 + k: the regions that member k lacks
  le32 first = 0;  ///< region
};
static_assert(sizeof(MirrorRegions) == 16);

/// Followed by `count` MirrorRun entries, in order and apart from each other. Tells all regions
/// from the asked one to `end`; at `regions` there is no more. Also the data of a COOL.
struct MirrorRegionsResponse {
  Header header;
  le32 regions = 0;  ///< of the disk
  le32 end = 0;
  le32 count = 0;
};
static_assert(sizeof(MirrorRegionsResponse) == 16);

struct MirrorRun {
  le32 first = 0;
  le32 count = 0;
};
static_assert(sizeof(MirrorRun) == 8);

struct MirrorCool {
  Header header;
  le32 device_id = 0;
  le64 term = 0;
  le32 seq = 0;    ///< of the view that is meant
  le32 beat = 0;   ///< the member counts up to it in that view
  le32 known = 0;  ///< all members of that view have counted up to it
  le32 reserved = 0;
};
static_assert(sizeof(MirrorCool) == 32 && offsetof(MirrorCool, beat) == 20);

/// The member copies a range from another one. Its data are the URI of that, not terminated.
struct MirrorPull {
  Header header;
  le32 device_id = 0;
  le64 offset = 0;  ///< bytes, as the next
  le64 length = 0;
  le64 disk = 0;  ///< the identity of that one
};
static_assert(sizeof(MirrorPull) == 32 && offsetof(MirrorPull, disk) == 24);

/// A member that pulls shows by it that the same client has claimed both, and which disk that
/// client means.
struct MirrorGuest {
  Header header;
  le32 device_id = 0;
  Uuid group{};
  Uuid claimant{};
  le64 disk = 0;
};
static_assert(sizeof(MirrorGuest) == 48 && offsetof(MirrorGuest, disk) == 40);

/// It may read, until the member is claimed once more.
struct MirrorGuestResponse {
  Header header;
  le32 reserved = 0;
};
static_assert(sizeof(MirrorGuestResponse) == 8);

/// The member of a view that has no other one takes its record away, and is a disk of its own from
/// then on.
struct MirrorDissolve {
  Header header;
  le32 device_id = 0;
  le64 term = 0;
  le32 flags = 0;
  le32 reserved = 0;
};
static_assert(sizeof(MirrorDissolve) == 24 && offsetof(MirrorDissolve, term) == 8);

/// The disk of a member may have become larger than that of its group. Only the served session is
/// answered.
struct MirrorRoom {
  Header header;
  le32 device_id = 0;
};
static_assert(sizeof(MirrorRoom) == 8);

struct MirrorRoomResponse {
  Header header;
  le32 reserved = 0;
  le64 size = 0;  ///< bytes of the group's disk, by its record
  le64 room = 0;  ///< bytes of the member's own
};
static_assert(sizeof(MirrorRoomResponse) == 24 && offsetof(MirrorRoomResponse, room) == 16);

inline constexpr std::size_t kMaxMirrorUri = 4096;

/// Errors: too_short, bad_type, bad_count (member, members), bad_value (term, group, claimant,
/// kind), bad_length (size, base, regions).
Result<MirrorClaim> decode_claim(ConstBytes bytes);
/// The disks that the claim of a vote names. Errors: too_short.
Result<std::vector<std::uint64_t>> decode_claimed_disks(ConstBytes bytes);
MirrorShape shape_of(const MirrorClaim& claim);
/// Errors: too_short, bad_type.
Result<MirrorView> decode_view_message(ConstBytes bytes);

MirrorViewFields encode_view(const mirror::View& view);

/// Of so many disks, and perhaps the vote. Errors: bad_value (a member beyond them, or no disk is
/// in step).
Result<mirror::View> decode_view(const MirrorViewFields& fields, unsigned members);

MirrorPedigree encode_pedigree(const mirror::Pedigree& pedigree);
/// Of all numbers.
mirror::Pedigree decode_pedigree(const MirrorPedigree& fields);
/// That of a VIEW, from the beginning of `data` on, which is moved behind it.
///
/// Errors: too_short.
Result<mirror::Pedigree> take_pedigree(ConstBytes& data);

/// `answer.maps` except for the count of active regions is asked for with REGIONS.
MirrorClaimResponse encode_claimed(const mirror::Claimed& answer, unsigned member,
                                   unsigned members);

/// Without maps. Errors: too_short, bad_type, bad_count (members), bad_length (size), bad_value
/// (views, flags, no disk, a term above the promised one).
Result<mirror::Claimed> decode_claimed(ConstBytes bytes);

/// The regions from `first` on, as many runs as fit into `capacity` bytes: one at least, so that
/// there is progress.
std::vector<std::byte> encode_regions(const mirror::RegionMap& map, std::uint32_t first,
                                      std::size_t capacity);

/// Adds them to `map` and returns the end. Bytes after the last run are ignored. Nothing is added
/// in case of an error. The sender's disk may have more regions than the map, which are left out,
/// or fewer, so that nothing is told of the rest.
///
/// Errors: too_short, bad_type, bad_count, bad_length (more regions than a disk can have, no
/// progress), bad_value (runs that are empty, out of order or outside).
Result<std::uint32_t> decode_regions(ConstBytes bytes, std::uint32_t first, mirror::RegionMap& map);

/// All pages of a map, one behind the other, from the beginning of `bytes` on, which is moved
/// behind them.
///
/// Errors: those of decode_regions().
Result<mirror::RegionMap> decode_map(ConstBytes& bytes, std::uint32_t regions);

/// The regions that each absent member lacks, one map per member; empty when the data are.
///
/// Errors: those of decode_regions().
Result<std::vector<mirror::RegionMap>> decode_inherited(ConstBytes data, mirror::MemberSet in_step,
                                                        unsigned members, std::uint32_t regions);

/// Errors: bad_name (empty, longer than kMaxMirrorUri, or with control characters).
Result<std::string> decode_pull_uri(ConstBytes data);

}  // namespace rnbd::wire
