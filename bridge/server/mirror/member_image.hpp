// SPDX-License-Identifier: BSD-3-Clause
// How a member's record lies in its file: two heads that take turns, and the maps in pages. Each
// part has a checksum of its own, so that one that is torn is recognised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/protocol/mirror_messages.hpp"
#include "bridge/server/mirror/member.hpp"
#include "rdma/failure.hpp"

namespace rnbd::mirror {

/// The complete record of a member at its server.
struct MemberState {
  wire::Uuid group{};
  wire::Uuid claimant{};  ///< of the promised term
  wire::MirrorShape shape;
  MemberRecord record;
  std::vector<ViewId> last_views;  ///< that were recorded here, the newest first
};

MemberState new_member(const wire::Uuid& group, const wire::MirrorShape& shape);
/// Puts a view in front of the last ones.
void remember_view(MemberState& state, const ViewId& view);

inline constexpr std::size_t kMaxLastViews = 8;

/// A map of a member: 0 is the activity log, 1 + k the regions that member k lacks.
const RegionMap& map_of(const MemberRecord& record, unsigned map);
inline unsigned maps_of(const wire::MirrorShape& shape) { return 1 + shape.members; }
/// Of one map.
std::size_t pages_of(const wire::MirrorShape& shape);
inline constexpr std::uint32_t kRegionsPerPage = 63 * 64;
inline std::size_t page_of(std::uint32_t region) { return region / kRegionsPerPage; }

/// Bytes for a place in the file.
struct Patch {
  std::uint64_t offset = 0;
  std::vector<std::byte> bytes;
};

/// The place of this head. The previous head, with `sequence` - 1, stays as it is. `about`: all but
/// the record.
Patch head_patch(const MemberState& about, const MemberRecord& record, std::uint64_t sequence);
/// One sector of a disk, which is written as a whole or not at all.
Patch page_patch(const wire::MirrorShape& shape, const MemberRecord& record, unsigned map,
                 std::size_t page);
std::vector<std::byte> whole_image(const MemberState& state, std::uint64_t sequence);

struct LoadedImage {
  MemberState state;
  std::uint64_t sequence = 0;
  unsigned torn = 0;  ///< parts with a wrong checksum
};

/// Loads the newer one of the heads that are whole. If a page is torn or missing, all of its
/// regions count as set. That is safe for regions about to be set, and for those about to be
/// cleared.
///
/// Errors: EBADMSG (no head is whole), EOPNOTSUPP (the version is unknown), with the end of a
/// sentence.
tl::expected<LoadedImage, rtrs::Failure> load_image(wire::ConstBytes image);

}  // namespace rnbd::mirror
