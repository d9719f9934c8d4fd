// SPDX-License-Identifier: BSD-3-Clause
// The common terms of a mirror group's client and members: views, regions, and the client's orders.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace rnbd::mirror {

/// Bit i: member i.
using MemberSet = std::uint16_t;
inline constexpr unsigned kMaxMembers = 16;

inline MemberSet bit(unsigned member) { return static_cast<MemberSet>(1U << member); }
inline bool has(MemberSet set, unsigned member) { return (set & bit(member)) != 0; }
inline MemberSet with(MemberSet set, unsigned member) {
  return static_cast<MemberSet>(set | bit(member));
}
inline MemberSet without(MemberSet set, unsigned member) {
  return static_cast<MemberSet>(set & ~bit(member));
}
inline unsigned size(MemberSet set) { return static_cast<unsigned>(std::popcount(set)); }
/// All of `part` are in `whole`.
inline bool within(MemberSet part, MemberSet whole) { return (part & ~whole) == 0; }

/// The number of a group's vote in records and messages. A vote has no copy. It records which views
/// there are, and counts in them as a disk does.
inline constexpr unsigned kVote = kMaxMembers - 1;
/// Those of the set that have copies. `disks`: as many as the group has.
inline MemberSet disks_of(MemberSet set, unsigned disks) {
  return static_cast<MemberSet>(set & ((1U << disks) - 1));
}
/// A client counts the vote right behind its disks. Turns its numbers into those of records, or
/// back.
MemberSet renumbered(MemberSet set, unsigned disks);

/// Orders the views of a group: terms count clients, and seq the views of one client.
struct ViewId {
  std::uint64_t term = 0;
  std::uint32_t seq = 0;
  auto operator<=>(const ViewId&) const = default;
};

/// Which members are in step: each of them has every write that was acknowledged in this view.
struct View {
  ViewId id;
  MemberSet set = 0;
};

/// How far a member's record has come. A record that is younger than it was has been set back.
struct Age {
  ViewId view{};
  std::uint32_t beat = 0;  ///< counts in that view how often the activity logs were cleared
  auto operator<=>(const Age&) const = default;
};

/// The disk that holds a number, and what its record has for certain.
struct Holder {
  std::uint64_t disk = 0;  ///< its identity; 0: no view knows one
  Age age{};
};

/// By number: the disk that had it in the newest view with that number. Empty: nothing is known.
using Pedigree = std::vector<Holder>;
/// As renumbered() of a set; with all numbers.
Pedigree renumbered(Pedigree pedigree, unsigned disks);

/// The upper half of a term counts decisions that operators have forced. Each begins a history.
inline std::uint64_t history_of(std::uint64_t term) { return term >> 32; }
/// The first claim of a member knows no earlier term, and may have any below this.
inline constexpr std::uint64_t kFirstTermsEnd = std::uint64_t{1} << 62;
/// False: it counts more forced decisions than anybody may have missed who knows the term `known`.
/// Terms must not run out.
inline bool is_near(std::uint64_t term, std::uint64_t known) {
  constexpr std::uint64_t kMostForced = 256;
  return history_of(term) <= history_of(known) + kMostForced;
}

enum class Degraded : std::uint8_t {
  allow,   ///< of two members one may go on alone
  quorum,  ///< more than half must be there, always
};

/// The number of members of a view that must be in the next one, one of which is a disk.
unsigned threshold(MemberSet set, Degraded degraded);
/// True if these of its members are enough for the next view.
bool are_enough(MemberSet members, MemberSet view, unsigned disks, Degraded degraded);

/// A set of regions of the disk, one bit for each. Above these bits are two summaries. A bit of a
/// summary says whether the word of 64 bits below it has a bit. So no question about a single
/// region, about the next one, or about their number looks at more than a few words.
///
/// Invariant: count_ and the summaries fit the bits of the regions.
/// Threads:   one at a time.
class RegionMap {
 public:
  RegionMap() = default;
  explicit RegionMap(std::uint32_t regions);

  std::uint32_t regions() const { return regions_; }
  bool contains(std::uint32_t region) const {
    return region < regions_ && (words()[region / 64] >> region % 64 & 1) != 0;
  }
  /// One behind the end is left out.
  void add(std::uint32_t region) {
    if (region < regions_ && !contains(region))
      put(region / 64, words()[region / 64] | bit_of(region));
  }
  void remove(std::uint32_t region) {
    if (contains(region)) put(region / 64, words()[region / 64] & ~bit_of(region));
  }
  void add_all();
  /// Regions of the other one that are not in this one are left out.
  void add(const RegionMap& other);
  void remove(const RegionMap& other);
  void clear();
  bool empty() const { return count_ == 0; }
  std::uint32_t count() const { return count_; }
  /// The first one that is `from` or behind it; regions(): there is none.
  std::uint32_t next(std::uint32_t from) const;
  const std::vector<std::uint64_t>& words() const { return levels_[0]; }
  /// Sets 64 regions at once; those beyond the end are left out.
  void set_word(std::size_t index, std::uint64_t word);
  /// New regions are not in the set.
  void resize(std::uint32_t regions);

 private:
  static constexpr std::size_t kLevels = 3;
  static std::uint64_t bit_of(std::uint32_t place) { return std::uint64_t{1} << place % 64; }
  void put(std::uint32_t index, std::uint64_t word);

  std::array<std::vector<std::uint64_t>, kLevels> levels_;  ///< the regions, then the summaries
  std::uint32_t regions_ = 0;
  std::uint32_t count_ = 0;
};

/// Sectors [begin, end).
struct Range {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};

/// Such data are copied as zeroes, so that a sparse disk stays sparse on all members.
bool only_zeroes(std::span<const std::byte> data);

/// The maps of a member: regions that may differ among the members after a crash, and for each
/// absent member the regions that it lacks. Its record may know of a larger disk than its client
/// uses, with more regions.
struct Maps {
  RegionMap active;
  std::vector<RegionMap> dirty;
};

/// How a member answers a claim.
struct Claimed {
  std::uint64_t promised = 0;  ///< the highest term that it knows, also when it refuses
  View view{};
  View confirmed{};
  bool lost_power = false;  ///< since its view; unflushed writes may be gone
  bool pulls = false;       ///< it can read from other members
  Maps maps{};
  std::uint64_t disk = 0;  ///< its identity
  std::uint32_t beat = 0;  ///< see Age
  Pedigree pedigree{};
  std::uint64_t size = 0;  ///< of the group's disk by its record, in bytes; 0: it does not say

  Age age() const { return {view.id, beat}; }
};

}  // namespace rnbd::mirror
