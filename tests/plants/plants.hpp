// SPDX-License-Identifier: BSD-3-Clause
// The bugs that the planted programs have, to prove that their tests find them. The blocks of the
// files *.plants in this folder put each of them into a copy of what ships.
#pragma once

#include <span>
#include <string_view>

namespace plants {

// No two bugs have the same name.

// Of both ends of the block protocol: rnbd-sim-planted.
#define CORE_PLANTS(X)                                                                             \
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
  X(nothing_spared, "a client without a path waits while another one has several")                 \
  X(last_path_spared, "the only path of a session goes for the sake of another client")            \
  X(inaccessible_carries, "a path that nobody may use counts as one that its session has left")    \
  X(silent_carries, "a path over which nothing comes any more counts as one that is left")         \
  X(spared_for_second, "a further path goes for another client's further path")                    \
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
  X(lent_unbounded, "memory is lent that the server does not have")                                \
  X(loan_kept, "a path keeps what it has borrowed and does not use any more")                      \
  X(floor_waits, "requests wait for memory that their path has of its own")                        \
  X(unsent_answer_discarded, "memory is given back while an answer is sent from it")               \
  X(starved_keeps, "a request that waits for memory keeps what others wait for")                   \
  X(arriving_discarded, "memory is given back while a request arrives there")                      \
  X(grant_untold, "a path is not told that it was lent what it waits for")                         \
  X(idle_not_asked, "idle paths are not asked for what they have borrowed")                        \
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
  X(stranger_recorded, "a session that comes again where nobody wrote is recorded as a writer")    \
  X(settle_time_ignored, "a better path that comes back is used before it has settled")            \
  X(better_path_unused, "nobody looks at a better path that came back when it has settled")        \
  X(access_notice_ignored, "the client goes on with what the server thought of a path before")     \
  X(proof_of_others_skipped, "a path serves before all its connections have proven their user")    \
  X(other_user_joins, "another user's connection gets into a path, or its path into a session")    \
  X(server_proof_unchecked, "a client takes a server that does not prove that it has the key")     \
  X(race_alone, "a silent connection is beaten although no other one has answered")                \
  X(doubt_unheeded, "a request leaves a silent path for one that has been outrun")                 \
  X(sent_by_count, "a request that has overtaken others counts as sent once these are")            \
  X(witness_asked_once, "a witness that has answered once is not asked whether it still lives")    \
  X(owed_forgotten, "a request goes over a path that owes an answer for its permit")               \
  X(older_unanswered, "a copy behind a newer write is not answered, and its permit owes for ever") \
  X(window_kept, "a read that leaves a silent path may still be written to over that")             \
  X(unsent_kept, "a write that leaves a silent path is still sent there from its memory")          \
  X(moved_as_new, "a write that leaves a silent path gets a new generation")                       \
  X(owed_kept_on_loss, "a permit owes an answer to a path that is gone")                           \
  X(late_answer_taken, "an answer over a path that a request has left ends that request")          \
  X(suspect_used, "requests go over a silent path, although another one answers")                  \
  X(moved_again, "a request that leaves a silent path goes to one that it has been on")            \
  X(bytes_unseen, "a connection is silent while no message is complete, although its bytes move")  \
  X(witness_forgotten, "a witness that owes nothing but its answer is silent for ever")            \
  X(flush_outlives_loss, "a flush under way when the machine restarts counts for what is lost")

// Of servers and memory paths: rnbd-sim-memory-planted.
#define MEMORY_PLANTS(X)                                                                    \
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

// Of mirror groups: rnbd-sim-mirror-planted.
#define MIRROR_PLANTS(X)                                                                          \
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
  X(rise_unclaimed, "a view is proposed to members that have not promised its term")              \
  X(error_of_all_kept, "what all members have refused counts as equal")                           \
  X(no_disk, "any disk with the right number counts as the member")                               \
  X(no_age, "a member that was set back to an earlier view counts as in step")                    \
  X(no_beat, "a member that was set back within its view counts as in step")                      \
  X(old_history, "a client goes on although an operator has forced another history")              \
  X(unknown_history, "a client attaches although a forced history is known and not met")          \
  X(pending_forgotten, "a view that was recorded and never in force gives nobody a place")        \
  X(pull_from_anyone, "a member copies from any server that the same client has claimed")         \
  X(trim_unlogged, "zeroing does not enter the activity log")                                     \
  X(trim_half_done, "a member that cannot zero as it is told counts as having zeroed")            \
  X(extents_no_lock, "extents are told of what is being changed")                                 \
  X(extents_from_syncing, "a member that is not in step tells extents")                           \
  X(extents_unequal, "extents of a region are told before it is made equal")                      \
  X(clear_no_lock, "zeroes are copied unread to where the source is being changed")               \
  X(hint_loses, "a member is lost that cannot tell extents")                                      \
  X(copied_early, "a region counts as copied when one unit of it is")                             \
  X(missed_cold, "changes that a member had not flushed when it was lost count as made")          \
  X(missed_in_resync, "changes that a member was sent while it came back count as made")          \
  X(late_pull_lands, "what a member is told to copy is written though it was answered already")   \
  X(confirm_not_known, "a member does not note that the others have the view in force")           \
  X(beat_not_counted, "nobody counts before regions leave the activity logs")                     \
  X(join_uncounted, "a returning member joins without counting once more")                        \
  X(unnamed_disk, "any disk counts as the member while no record names one")                      \
  X(record_by_claim, "a claim binds a server to a group before it is in a view")                  \
  X(no_lease, "a read is answered although members may serve another client")                     \
  X(lease_not_awaited, "a client attaches while another may read from a member it lacks")         \
  X(old_answer_counts, "an answer from before a read shows that members serve its client")        \
  X(done_before_jobs, "a user has its memory back while a lost member's command uses it")         \
  X(verify_no_lock, "copies are compared while they are being changed")                           \
  X(verify_unequal, "what is to be made equal is reported as a difference")                       \
  X(verify_syncing, "a member that is not in step is compared")                                   \
  X(repair_from_any, "a difference is repaired with the data of any member")                      \
  X(dissolve_at_once, "a mirror of three or more is dissolved without a view of two before")      \
  X(dissolve_unflushed, "a mirror is dissolved before what was written is durable")               \
  X(dissolve_unanswered, "a member dissolves while it has orders to answer")                      \
  X(dissolve_goes_on, "a member that dissolves gets further orders")                              \
  X(dissolve_of_others, "a member dissolves for a client that has been superseded")               \
  X(vote_is_source, "a vote is read as if it had a copy")                                         \
  X(blank_vote_counts, "a vote that was wiped counts as what it was")                             \
  X(view_without_disk, "a view needs no disk of the one before it")                               \
  X(vote_taints, "a vote does not count after its server has lost its power")                     \
  X(vote_not_first, "a view is recorded by disks before the vote has it")                         \
  X(void_view_counts, "a view that only the vote has recorded decides")                           \
  X(void_view_forgets, "such a view makes the vote forget the one before it")                     \
  X(vote_for_lost, "a vote stands for a disk that has what was not flushed")                      \
  X(vote_not_told, "the vote does not know how far the disks of its view have come")              \
  X(vote_of_others, "a vote is claimed by a client that knows no disk of its mirror")             \
  X(blank_vote_promises, "a vote that has recorded nothing holds to the claims of strangers")     \
  X(grow_early, "users see a larger disk before all members in step have recorded it")            \
  X(grow_beside_resync, "a disk grows while a member comes back that knows the old size only")    \
  X(grow_beside_changes, "a disk grows while changes and copies are under way")                   \
  X(growth_kept, "a view does not take back a growth that was given up")                          \
  X(tail_not_active, "the new room of a disk is not in the activity logs")                        \
  X(disk_left_out, "a client leaves a disk of a group out that had a place in it")                \
  X(tail_not_unequal, "the new room of a disk is read before it is made equal")                   \
  X(size_of_any, "a member that was away when the disk grew makes it smaller")                    \
  X(refused_growth_counts, "a member that cannot record a larger disk counts as one that has")    \
  X(asked_is_put_off, "a growth is put off, and left in records, when members were asked already")

// Of bricks: rnbd-sim-brick-planted.
#define BRICK_PLANTS(X)                                                                       \
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

// Of the users of mode=passive: rnbd-sim-passive-planted.
#define PASSIVE_PLANTS(X)                                                                     \
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

// Of calls that are carried out once: unit_library.
#define CALL_PLANTS(X)                                                                \
  X(executed_again, "a call that has ended is carried out again when it comes again") \
  X(answered_early, "a copy that comes while its call executes is answered at once")  \
  X(late_copy_executed, "a late copy of an older call of the slot is carried out")    \
  X(error_forgotten, "a call that ended with an error is carried out again")          \
  X(void_executed, "a call of a session that is forgotten is carried out")            \
  X(data_not_awaited, "a call that overtakes its data is carried out without them")   \
  X(piece_counted_twice, "a piece of data that comes again counts again")             \
  X(long_answer_dropped, "an answer is not kept although parts of it are fetched")    \
  X(never_given_back, "memory of the handler is not given back")                      \
  X(generation_repeated, "two calls of a slot have the same generation")              \
  X(slot_given_twice, "a slot that comes back is given to two calls")

enum class Name {
  none,
#define PLANT_NAME(name, text) name,
  CORE_PLANTS(PLANT_NAME) MEMORY_PLANTS(PLANT_NAME) MIRROR_PLANTS(PLANT_NAME)
      BRICK_PLANTS(PLANT_NAME) PASSIVE_PLANTS(PLANT_NAME) CALL_PLANTS(PLANT_NAME)
#undef PLANT_NAME
};

struct Plant {
  Name id;
  const char* name;
  const char* text;  ///< what is wrong
};

#define PLANT(name, text) Plant{Name::name, #name, text},
inline constexpr Plant kCore[] = {CORE_PLANTS(PLANT)};
inline constexpr Plant kMemory[] = {MEMORY_PLANTS(PLANT)};
inline constexpr Plant kMirror[] = {MIRROR_PLANTS(PLANT)};
inline constexpr Plant kBrick[] = {BRICK_PLANTS(PLANT)};
inline constexpr Plant kPassive[] = {PASSIVE_PLANTS(PLANT)};
#undef PLANT

/// The bug that the program has now.
inline Name selected = Name::none;

/// False: no bug of the list has this name.
inline bool select(std::span<const Plant> list, std::string_view name) {
  for (const Plant& plant : list) {
    if (name != plant.name) continue;
    selected = plant.id;
    return true;
  }
  return false;
}

}  // namespace plants

/// In a copy of what ships: whether it has this bug now.
#define PLANTED(name) (::plants::selected == ::plants::Name::name)

/// The list, in a program that has the copies, and an empty one in any other.
#ifdef RNBDKIT_PLANTED
#define PLANTS_OF_PROGRAM(list) std::span<const ::plants::Plant>(list)
#else
#define PLANTS_OF_PROGRAM(list) std::span<const ::plants::Plant>()
#endif
