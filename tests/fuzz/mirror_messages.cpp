// SPDX-License-Identifier: BSD-3-Clause
// Input: le16 number of regions, le16 first region asked for, message: REGIONS response, claim or
// answer to a claim, or the data of a VIEW (the first region is the set in step).
#include "bridge/protocol/mirror_messages.hpp"

#include "tests/fuzz/fuzz.hpp"

using namespace rnbd::wire;
namespace mirror = rnbd::mirror;

namespace {

void check_claimed(ConstBytes bytes) {
  const auto answer = decode_claimed(bytes);
  if (!answer) {
    fuzz::require(fuzz::failed_with(answer, {DecodeError::too_short, DecodeError::bad_type,
                                             DecodeError::bad_count, DecodeError::bad_value}),
                  "only documented errors");
    return;
  }
  fuzz::require(answer->view.set != 0 && answer->confirmed.set != 0, "somebody is in each view");
}

void check_regions(ConstBytes bytes, std::uint32_t regions, std::uint32_t first) {
  mirror::RegionMap map{regions};
  const auto end = decode_regions(bytes, first, map);
  if (!end) {
    fuzz::require(map.empty(), "nothing is taken from what is refused");
    fuzz::require(fuzz::failed_with(
                      end, {DecodeError::too_short, DecodeError::bad_type, DecodeError::bad_count,
                            DecodeError::bad_length, DecodeError::bad_value}),
                  "only documented errors");
    return;
  }
  fuzz::require(*end > first || *end == regions, "there is progress");
  fuzz::require(map.empty() || (map.next(0) >= first && map.next(*end) == regions),
                "no region outside of the page");
  mirror::RegionMap again{regions};
  const auto encoded = encode_regions(map, 0, bytes.size());
  fuzz::require(decode_regions(encoded, 0, again).has_value(), "what we encode can be decoded");
  fuzz::require(again.words() == map.words(), "regions survive encoding");
}

void check_claim(ConstBytes bytes) {
  const auto claim = decode_claim(bytes);
  if (!claim) {
    fuzz::require(fuzz::failed_with(
                      claim, {DecodeError::too_short, DecodeError::bad_type, DecodeError::bad_count,
                              DecodeError::bad_value, DecodeError::bad_length}),
                  "only documented errors");
    return;
  }
  const MirrorShape shape = shape_of(*claim);
  const bool is_number =
      shape.is_vote() ? shape.member == mirror::kVote : shape.member < shape.members;
  fuzz::require(is_number && shape.members <= mirror::kMaxMembers, "a member");
  fuzz::require((shape.regions() > 0) != shape.is_vote(), "a vote has no regions");
  fuzz::require(shape.regions() <= kMaxGrownRegions, "regions");
  const auto disks = decode_claimed_disks(bytes);
  if (disks) return fuzz::require(disks->size() <= mirror::kVote, "one disk for each number");
  fuzz::require(fuzz::failed_with(disks, {DecodeError::too_short}), "only documented errors");
}

void check_inherited(ConstBytes bytes, std::uint32_t regions, mirror::MemberSet in_step) {
  ConstBytes rest = bytes;
  const auto pedigree = take_pedigree(rest);
  fuzz::require(pedigree.has_value() == (rest.size() < bytes.size()), "a pedigree is taken whole");
  const auto maps = decode_inherited(bytes, in_step, 4, regions);
  if (!maps) return;
  fuzz::require(maps->empty() == bytes.empty(), "something is told or nothing");
  for (unsigned k = 0; k < maps->size(); ++k) {
    const mirror::RegionMap& map = (*maps)[k];
    fuzz::require(!mirror::has(in_step, k) || map.empty(), "only absent members lack something");
    fuzz::require(map.next(regions) >= map.regions(), "no region behind the end");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  const std::uint32_t regions = input.take<le16>();
  const std::uint32_t first = input.take<le16>();
  check_claimed(input.rest());
  check_claim(input.rest());
  check_regions(input.rest(), regions, first);
  check_inherited(input.rest(), regions, static_cast<mirror::MemberSet>(first));
  return 0;
}
