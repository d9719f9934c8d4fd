// SPDX-License-Identifier: BSD-3-Clause
// Bugs on purpose, to prove that the simulator finds them. Without RNBDKIT_PLANT_BUGS every one of
// them is a constant false. Only for .cpp files.
#pragma once

#include <iterator>
#include <span>
#include <string_view>

namespace rtrs {

#define RTRS_PLANTS(X)                                                                             \
  X(permit_lost_on_error, "an answer with an error does not give its permit back")                 \
  X(reply_on_wrong_slot, "an answer with an error goes to the neighbouring permit")                \
  X(data_offset_wrong, "a write of the largest size is taken 8 bytes too late from its chunk")     \
  X(heartbeat_deaf, "arrivals at the client do not count as life")                                 \
  X(control_silence_ignored, "a connection 0 that carries nothing is none, while others carry")    \
  X(lane_not_probed, "a connection that owes answers and carries nothing is not looked at")        \
  X(heard_twice, "one sign of life counts for two intervals")                                      \
  X(heartbeat_never_dead, "the server never gives up a silent client")                             \
  X(cancelled_window_exposed, "a read that was given up may still write to its memory")            \
  X(cancelled_data_unowned, "a write that was given up is still sent from its memory")             \
  X(waiting_request_lost, "an answer to a given-up request wakes nobody who waits")                \
  X(detach_forgets_waiting, "who waits for a permit is not told that the session died")            \
  X(last_piece_misplaced, "the last piece of a split write goes to the wrong place")               \
  X(flush_too_early, "the flush behind a transfer does not wait for its pieces")                   \
  X(fua_dropped, "FUA is ignored where the backend has none of its own")                           \
  X(flush_made_up, "a flush is handed on to storage that has none")                                \
  X(read_only_not_enforced, "a read-only opening may write")                                       \
  X(close_too_early, "CLOSE is answered while requests run")                                       \
  X(tail_cut, "the last, partial sector of an export is missing")                                  \
  X(gone_too_early, "a session ends while its requests execute")                                   \
  X(device_id_reused, "the id of a closed device is given to the next one")                        \
  X(hello_counts_memory, "a path counts as memory before its handshake is finished")               \
  X(hello_closes_older_generation, "a connect request alone closes the path's older generation")   \
  X(hello_counts_session, "a session counts before a handshake of it is finished")                 \
  X(admitted_not_counted, "a path that takes the place of its older generation counts no memory")  \
  X(admitted_counted_twice, "a path that joins a session counts its memory twice")                 \
  X(removed_path_counts, "the memory of a path that is gone counts on")                            \
  X(door_cleared_by_age, "the oldest one at a full door makes room, be its host alone or a crowd") \
  X(turned_away_hurries, "who is turned away at a full door again and again comes back as soon")   \
  X(half_open_session_leaks, "a session that failed its handshake counts for ever")                \
  X(invalidate_too_late, "a key is invalidated behind the answer")                                 \
  X(revocation_not_awaited, "a request is carried out before the key of its chunk has ended")      \
  X(new_key_bound_elsewhere, "a chunk's new key is told before the device knows it")               \
  X(new_key_ignored, "the client goes on with a chunk's old key")                                  \
  X(receive_not_reposted, "heartbeats use up the server's receives")                               \
  X(errno_truncated, "errors that do not fit are cut instead of told as EIO")                      \
  X(resent_as_new, "a change that is sent again gets a new generation")                            \
  X(resent_without_proof, "a change is sent again before Linux's server has ended the first")      \
  X(stranded_forgotten, "what was in flight on a dead path is not sent again")                     \
  X(wait_forgotten, "what a path has carried in vain begins to wait anew when it is lost")         \
  X(settle_skipped, "a given-up change does not hold its permit when its path dies")               \
  X(no_attach, "a write that still executes is carried out again when it is sent again")           \
  X(no_dedup, "a write that has ended is carried out again when it is sent again")                 \
  X(linger_forgets, "a session without paths forgets which writes it has seen")                    \
  X(path_chunks_shared, "the paths of a session share their chunks")                               \
  X(old_layout_kept, "immediates of a renewed session are laid out for the old queue depth")       \
  X(chunk_given_back_early, "a dead path gives back chunks that writes execute in")                \
  X(write_left_behind, "an OPEN is sent although a write given up may reach what it opens")        \
  X(given_up_overtaken, "a change does not wait for one of its owner's that was given up")         \
  X(given_up_for_ever, "what was given up counts as under way when it has ended")                  \
  X(close_left_behind, "an OPEN is sent although the end of a CLOSE is unknown")                   \
  X(close_repeated_by_id, "Linux's server is told again to close an id that another one may have") \
  X(stale_executed, "a write older than one that was answered is carried out")                     \
  X(settle_executes, "a write whose caller has left is carried out when it is settled")            \
  X(linux_replay_executed, "a peer without generations has its resent writes executed twice")      \
  X(unread_paths, "a peer without generations has its resent write executed before the first")     \
  X(renewed_without_proof, "without generations, a renewed session sends changes again at once")   \
  X(removed_without_proof, "a removed path is gone while Linux's server may be at what it got")    \
  X(renew_skipped, "requests in flight keep the device ids of a forgotten session")                \
  X(change_unseen, "a device that is another one now is taken for the one that was open")          \
  X(other_writer_unseen, "a device that others wrote to meanwhile is opened again")                \
  X(first_comer_unseen, "where records were lost, who is not the first writes all the same")       \
  X(reservation_forgotten, "a server does not remember who wrote in its life before")              \
  X(part_outlives_leaving, "who is cut off while another one writes may repeat what it wrote")     \
  X(opening_claims, "an opening that has changed nothing excludes other writers")                  \
  X(claim_unseen, "who claims a disk need not know what others have written since")                \
  X(sights_not_compared, "once a session has claimed a disk, all its users may change it")         \
  X(sight_by_serial, "who came to write is taken for proof of what a user has seen")               \
  X(unclaimed_writes, "a change needs no reservation")                                             \
  X(loss_not_told, "a restart of the server's machine is not noticed")                             \
  X(no_path_once, "only the first time without a path ends by no-path-timeout")                    \
  X(no_path_at_once, "without a path requests fail at once instead of after no-path-timeout")      \
  X(own_pause_counts, "time in which the client itself stood still counts for no-path-timeout")    \
  X(vain_path_counts, "a path that ends soon and has answered nothing counts as one")              \
  X(foreign_path_begins, "a path that leads to another server begins the session there")           \
  X(foreign_path_renews, "a path that leads to another server renews the session there")           \
  X(refused_path_trusted,                                                                          \
    "a path that was found to lead to another server, while the session's own server answered, "   \
    "renews the session there later")                                                              \
  X(unproven_path_begins, "where servers tell no identity, any path begins or renews a session")   \
  X(older_record_accepted,                                                                         \
    "a server whose record of writers is older than what the session has seen renews it")          \
  X(settle_time_ignored, "a better path that comes back is used before it has settled")            \
  X(better_path_unused, "nobody looks at a better path that came back when it has settled")        \
  X(access_notice_ignored, "the client goes on with what the server thought of a path before")     \
  X(proof_of_others_skipped, "a path serves before all its connections have proven their user")    \
  X(other_user_joins, "another user's connection gets into a path, or its path into a session")    \
  X(server_proof_unchecked, "a client takes a server that does not prove that it has the key")     \
  X(flush_outlives_loss, "a flush under way when the machine restarts counts for what is lost")

#define PLANTS RTRS_PLANTS
#include "rdma/plant_table.inc"

#ifdef RNBDKIT_PLANT_BUGS
#define RTRS_PLANTED(name) (::rtrs::selected_plant == ::rtrs::Plant::name)
#else
#define RTRS_PLANTED(name) false
#endif

}  // namespace rtrs
