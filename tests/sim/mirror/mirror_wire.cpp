// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/mirror/mirror_wire.hpp"

#include <utility>

#include "bridge/protocol/mirror_messages.hpp"
#include "tests/sim/mirror/mirror_world.hpp"

namespace sim {

using namespace rnbd;

mirror::RegionMap over_wire(const mirror::RegionMap& map) {
  constexpr std::size_t kPage = sizeof(wire::MirrorRegionsResponse) + 2 * sizeof(wire::MirrorRun);
  mirror::RegionMap arrived{map.regions()};
  for (std::uint32_t first = 0; first < map.regions();) {
    const auto end = wire::decode_regions(wire::encode_regions(map, first, kPage), first, arrived);
    if (!end) throw MirrorViolation("a page of regions cannot be decoded");
    first = *end;
  }
  return arrived;
}

std::vector<mirror::RegionMap> over_wire(const std::vector<mirror::RegionMap>& maps) {
  std::vector<mirror::RegionMap> arrived;
  arrived.reserve(maps.size());
  for (const auto& map : maps) arrived.push_back(over_wire(map));
  return arrived;
}

mirror::Maps over_wire(const mirror::Maps& maps) {
  return {.active = over_wire(maps.active), .dirty = over_wire(maps.dirty)};
}

mirror::View over_wire(const mirror::View& view, unsigned disks) {
  const mirror::View recorded{view.id, mirror::renumbered(view.set, disks)};
  const auto arrived = wire::decode_view(wire::encode_view(recorded), disks);
  if (!arrived) throw MirrorViolation("a view has no disk");
  return *arrived;
}

mirror::Pedigree over_wire(const mirror::Pedigree& pedigree, unsigned disks) {
  return wire::decode_pedigree(wire::encode_pedigree(mirror::renumbered(pedigree, disks)));
}

mirror::Claimed over_wire(const mirror::Claimed& answer, unsigned member, unsigned disks) {
  const unsigned number = member == disks ? mirror::kVote : member;
  const auto message = wire::encode_claimed(answer, number, disks);
  auto arrived = wire::decode_claimed(rtrs::wire::bytes_of(message));
  if (!arrived) throw MirrorViolation("an answer to a claim cannot be decoded");
  arrived->view.set = mirror::renumbered(arrived->view.set, disks);
  arrived->confirmed.set = mirror::renumbered(arrived->confirmed.set, disks);
  arrived->pedigree = mirror::renumbered(std::move(arrived->pedigree), disks);
  arrived->maps = over_wire(answer.maps);
  return *arrived;
}

}  // namespace sim
