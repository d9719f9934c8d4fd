// SPDX-License-Identifier: BSD-3-Clause
// Bugs on purpose in bricks, to prove that their simulator finds them. Without RNBDKIT_PLANT_BUGS
// every one of them is a constant false. Only for .cpp files.
#pragma once

#include <iterator>
#include <span>
#include <string_view>

namespace rnbd::brick {

#define RNBD_BRICK_PLANTS(X)                                                                  \
  X(reuse_before_dereg, "UNMAP is answered before the keys are dead")                         \
  X(revoke_early, "REVOKE PATH is answered before the path's keys are dead")                  \
  X(reuse_before_record, "the place of a freed block is reused before its record is durable") \
  X(alloc_early, "ALLOC is answered before its record is durable")                            \
  X(not_zeroed, "memory is not zeroed for a new block")                                       \
  X(late_unmap, "a late UNMAP ends a newer map")                                              \
  X(map_twice, "a MAP that is asked again gets other keys")                                   \
  X(old_map, "a late copy of a MAP that its client has settled maps again")                   \
  X(doubled_place, "after a crash the place of a block is given to another one")              \
  X(evict_mapped, "a mapped block leaves memory")                                             \
  X(evict_in_use, "a block leaves memory under a request for it")                             \
  X(evict_early, "memory is reused before the block is durable in the tier")                  \
  X(evict_clean, "one-sided writes do not count as changes")                                  \
  X(stored_early, "the tier counts as filled before it is")                                   \
  X(lease_ignored, "a client that does not give back what is recalled keeps it")              \
  X(free_mapped, "a mapped block may be freed")                                               \
  X(list_early, "LIST does not show a block whose FREE is not durable")                       \
  X(sync_early, "SYNC is answered before the bytes are durable")                              \
  X(close_early, "CLOSE is answered before the keys of its client are dead")                  \
  X(share_ignored, "a map does not exclude others")                                           \
  X(dead_path_maps, "a path that was revoked maps again")

#define PLANTS RNBD_BRICK_PLANTS
#include "rdma/plant_table.inc"

#ifdef RNBDKIT_PLANT_BUGS
#define RNBD_BRICK_PLANTED(name) (::rnbd::brick::selected_plant == ::rnbd::brick::Plant::name)
#else
#define RNBD_BRICK_PLANTED(name) false
#endif

}  // namespace rnbd::brick
