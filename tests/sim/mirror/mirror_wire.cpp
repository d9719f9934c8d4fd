// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/mirror/mirror_wire.hpp"

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

mirror::Pedigree over_wire(const mirror::Pedigree& pedigree) {
  return wire::decode_pedigree(wire::encode_pedigree(pedigree),
                               static_cast<unsigned>(pedigree.size()));
}

mirror::Claimed over_wire(const mirror::Claimed& answer, unsigned member, unsigned members) {
  const auto message = wire::encode_claimed(answer, member, members);
  auto arrived = wire::decode_claimed(rtrs::wire::bytes_of(message));
  if (!arrived) throw MirrorViolation("an answer to a claim cannot be decoded");
  arrived->maps = over_wire(answer.maps);
  return *arrived;
}

}  // namespace sim
