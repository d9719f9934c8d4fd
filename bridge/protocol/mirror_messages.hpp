// SPDX-License-Identifier: BSD-3-Clause
// Messages between a client and a member of a mirror group. Questions (CLAIM, REGIONS) are answered
// like BLOCK STATUS; orders (VIEW, CONFIRM, COOL, PULL) are carried out once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/protocol/messages.hpp"
#include "bridge/protocol/mirror.hpp"

namespace rnbd::wire {

inline constexpr auto kMirrorClaim = MessageType{0x8021};
inline constexpr auto kMirrorClaimResponse = MessageType{0x8022};
inline constexpr auto kMirrorView = MessageType{0x8023};
inline constexpr auto kMirrorConfirm = MessageType{0x8025};
inline constexpr auto kMirrorRegions = MessageType{0x8027};
inline constexpr auto kMirrorRegionsResponse = MessageType{0x8028};
inline constexpr auto kMirrorCool = MessageType{0x8029};
inline constexpr auto kMirrorPull = MessageType{0x802B};

struct MirrorViewFields {
  le64 term = 0;
  le32 seq = 0;
  le16 set = 0;
  le16 reserved = 0;
};
static_assert(sizeof(MirrorViewFields) == 16 && offsetof(MirrorViewFields, set) == 12);

struct MirrorClaim {
  Header header;
  le32 device_id = 0;
  Uuid group{};
  Uuid claimant{};  ///< one life of a client: may ask again, the answer may have been lost
  le64 term = 0;
};
static_assert(sizeof(MirrorClaim) == 48 && offsetof(MirrorClaim, term) == 40);

enum MirrorFlag : std::uint8_t {
  kMirrorLostPower = 1,  ///< since its view
  kMirrorNew = 2,        ///< never in a view
};

struct MirrorClaimResponse {
  Header header;
  std::uint8_t member = 0;
  std::uint8_t members = 0;       ///< of the group; `member` is below it
  std::uint8_t region_shift = 0;  ///< a region has 1 << region_shift bytes
  std::uint8_t flags = 0;
  le64 promised = 0;  ///< the highest term that it knows
  Uuid claimant{};    ///< of that term
  MirrorViewFields view;
  MirrorViewFields confirmed;
  le32 active = 0;  ///< regions in its activity log
  le32 reserved = 0;
};
static_assert(sizeof(MirrorClaimResponse) == 72 && offsetof(MirrorClaimResponse, view) == 32);

/// Its data are for each member k that is absent, in order, a REGIONS response of what k lacks.
struct MirrorView {
  Header header;
  le32 device_id = 0;
  MirrorViewFields view;
  MirrorViewFields confirmed;
};
static_assert(sizeof(MirrorView) == 40 && offsetof(MirrorView, confirmed) == 24);

struct MirrorConfirm {
  Header header;
  le32 device_id = 0;
  MirrorViewFields view;
};
static_assert(sizeof(MirrorConfirm) == 24);

struct MirrorRegions {
  Header header;
  le32 device_id = 0;
  le32 which = 0;  ///< 0: the activity log; 1 + k: what member k lacks
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
};
static_assert(sizeof(MirrorCool) == 16);

/// Its data are the URI of the member to read from, not terminated.
struct MirrorPull {
  Header header;
  le32 device_id = 0;
};
static_assert(sizeof(MirrorPull) == 8);

inline constexpr std::size_t kMaxMirrorUri = 4096;

MirrorViewFields encode_view(const mirror::View& view);

/// Of `members`. Errors: bad_value (a member beyond them, or nobody is in step).
Result<mirror::View> decode_view(const MirrorViewFields& fields, unsigned members);

/// `answer.maps` except for the count of active regions is asked for with REGIONS.
MirrorClaimResponse encode_claimed(const mirror::Claimed& answer, unsigned member,
                                   unsigned members);

/// Without maps. Errors: too_short, bad_type, bad_count (members), bad_value (views, flags).
Result<mirror::Claimed> decode_claimed(ConstBytes bytes);

/// The regions from `first` on, as many runs as fit into `capacity` bytes: one at least, so that
/// there is progress.
std::vector<std::byte> encode_regions(const mirror::RegionMap& map, std::uint32_t first,
                                      std::size_t capacity);

/// Adds them to `map` and returns the end. Bytes after the last run are ignored. Nothing is added
/// in case of an error.
///
/// Errors: too_short, bad_type, bad_count, bad_length (another number of regions, no progress),
/// bad_value (runs that are empty, out of order or outside).
Result<std::uint32_t> decode_regions(ConstBytes bytes, std::uint32_t first, mirror::RegionMap& map);

/// Errors: bad_name (empty, longer than kMaxMirrorUri, or with control characters).
Result<std::string> decode_pull_uri(ConstBytes data);

}  // namespace rnbd::wire
