// SPDX-License-Identifier: BSD-3-Clause
// Bugs on purpose in what servers do with memory paths, to prove that their simulator finds them.
// Without RNBDKIT_PLANT_BUGS every one of them is a constant false. Only for .cpp files.
#pragma once

#include <iterator>
#include <span>
#include <string_view>

namespace rtrs::memory {

#define RTRS_MEMORY_PLANTS(X)                                                               \
  X(told_when_closed, "the end of a memory path is told before its keys are dead")          \
  X(session_gone_first, "a session is over before the keys of its memory paths are dead")   \
  X(keeps_session, "a memory path keeps a session whose other paths are gone")              \
  X(comes_alone, "a memory path comes to a session without other paths")                    \
  X(ends_session, "a memory path that closes takes its session along")                      \
  X(revokes_session, "REVOKE PATH, and the end of a lease, close all paths of the session") \
  X(recall_told_once, "a recall whose path is lost is not told again")                      \
  X(close_first, "CLOSE is answered before the keys of its client are dead")                \
  X(path_of_others, "a client may name a memory path of another one")                       \
  X(dead_path_forgotten, "a path that was revoked before its first MAP may map")

#define PLANTS RTRS_MEMORY_PLANTS
#include "rdma/plant_table.inc"

#ifdef RNBDKIT_PLANT_BUGS
#define RTRS_MEMORY_PLANTED(name) (::rtrs::memory::selected_plant == ::rtrs::memory::Plant::name)
#else
#define RTRS_MEMORY_PLANTED(name) false
#endif

}  // namespace rtrs::memory
