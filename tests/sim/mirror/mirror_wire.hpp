// SPDX-License-Identifier: BSD-3-Clause
// Messages between client and members, encoded and decoded as over a network.
#pragma once

#include <vector>

#include "bridge/protocol/mirror.hpp"

namespace sim {

// Errors: MirrorViolation when the decoder refuses what was encoded.
rnbd::mirror::RegionMap over_wire(const rnbd::mirror::RegionMap& map);
std::vector<rnbd::mirror::RegionMap> over_wire(const std::vector<rnbd::mirror::RegionMap>& maps);
rnbd::mirror::Maps over_wire(const rnbd::mirror::Maps& maps);
/// From a client to a member.
rnbd::mirror::View over_wire(const rnbd::mirror::View& view, unsigned disks);
rnbd::mirror::Pedigree over_wire(const rnbd::mirror::Pedigree& pedigree, unsigned disks);
/// From a member to a client.
rnbd::mirror::Claimed over_wire(const rnbd::mirror::Claimed& answer, unsigned member,
                                unsigned disks);

}  // namespace sim
