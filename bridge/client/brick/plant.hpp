// SPDX-License-Identifier: BSD-3-Clause
// Deliberate bugs in the rules of mode=passive, to prove that the simulator finds them. Without
// RNBDKIT_PLANT_BUGS each one is a constant false. Only for .cpp files.
#pragma once

#include <iterator>
#include <span>
#include <string_view>

namespace rnbd::passive {

#define RNBD_PASSIVE_PLANTS(X)                                                                \
  X(resend_before_revoke, "a request goes two-sided before the keys of a lost path are dead") \
  X(read_before_settle, "a two-sided request does not wait for one-sided writes to be seen")  \
  X(unmap_in_use, "a block is unmapped while a request uses its key")                         \
  X(enter_leaving, "a block that is given back takes more requests")                          \
  X(maps_outlive_path, "the keys of a lost path are used again")                              \
  X(read_map_written, "a map for reading is written")                                         \
  X(settle_ended, "writes are made visible by a key that may be dead")                        \
  X(debt_of_maps_only, "a flush does not cover two-sided changes")                            \
  X(failed_flush_forgotten, "what a flush could not make durable is not flushed again")       \
  X(range_cut, "a flush covers the newest write to a block only")

#define PLANTS RNBD_PASSIVE_PLANTS
#include "rdma/plant_table.inc"

#ifdef RNBDKIT_PLANT_BUGS
#define RNBD_PASSIVE_PLANTED(name) (::rnbd::passive::selected_plant == ::rnbd::passive::Plant::name)
#else
#define RNBD_PASSIVE_PLANTED(name) false
#endif

}  // namespace rnbd::passive
