// SPDX-License-Identifier: BSD-3-Clause
// Bugs on purpose in mirror groups, to prove that their simulator finds them. Without
// RNBDKIT_PLANT_BUGS every one of them is a constant false. Only for .cpp files.
#pragma once

#include <iterator>
#include <span>
#include <string_view>

namespace rnbd::mirror {

#define RNBD_MIRROR_PLANTS(X)                                                                     \
  X(ack_before_view, "a write is acknowledged before the view without a lost member is recorded") \
  X(no_terms, "a member serves clients whose term is over")                                       \
  X(attach_any, "one member suffices to attach")                                                  \
  X(shrink_below_t, "a view may lose any number of members at once")                              \
  X(uncommitted_base, "a view that was never confirmed alone decides about the next")             \
  X(no_strays, "the activity log of a returning member is ignored")                               \
  X(no_al_resync, "after an unclean end nothing is made equal")                                   \
  X(al_clear_early, "regions leave the activity logs without a flush of all members")             \
  X(no_taint, "a member that lost its power counts as in step")                                   \
  X(join_early, "a returning member joins before everything is copied")                           \
  X(no_range_lock, "overlapping changes run at the same time")                                    \
  X(resync_no_lock, "regions are copied while they change")                                       \
  X(read_from_syncing, "a member that is not in step is read")                                    \
  X(read_no_lock, "what is being changed is read")                                                \
  X(read_before_resync, "a region is read before it is made equal")                               \
  X(dirty_not_from_al, "a view does not make the activity log dirty for absent members")          \
  X(absent_by_client, "a member notes nothing for absent members when it writes")                 \
  X(dirty_clear_early, "what leaves the activity log is not dirty for absent members any more")   \
  X(d_snapshot_early, "the list of what to copy is made while older changes run")                 \
  X(no_dirty_inherit, "a joining member does not learn what others lack")                         \
  X(ghost_rejoin, "late copies of a member's older session are carried out")                      \
  X(join_no_flush, "a returning member joins before it is flushed")                               \
  X(first_view_of_all, "members of a new group count as in step before they have got a copy")     \
  X(overwrite_unasked, "the data on a disk that is new in the group are overwritten")             \
  X(rise_unclaimed, "a view is proposed to members that have not promised its term")

#define PLANTS RNBD_MIRROR_PLANTS
#include "rdma/plant_table.inc"

#ifdef RNBDKIT_PLANT_BUGS
#define RNBD_MIRROR_PLANTED(name) (::rnbd::mirror::selected_plant == ::rnbd::mirror::Plant::name)
#else
#define RNBD_MIRROR_PLANTED(name) false
#endif

}  // namespace rnbd::mirror
