// SPDX-License-Identifier: BSD-3-Clause
// A session in miniature for one CPU: its slice of the permits, its connection on each path, its
// requests in flight. All that happens per I/O at the client happens here, shared with no other
// lane.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "rdma/core/client/keepalive_watch.hpp"
#include "rdma/core/client/lane_order.hpp"
#include "rdma/core/client/lane_slots.hpp"
#include "rdma/core/client/operation.hpp"
#include "rdma/core/client/path_choice.hpp"
#include "rdma/core/client/request.hpp"
#include "rdma/core/client/waiting_requests.hpp"
#include "rdma/core/path.hpp"
#include "rdma/core/queue_pair.hpp"
#include "rdma/core/time.hpp"
#include "rdma/core/unresolved.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

/// Sends requests on any working path as permits allow, and hands the answers back. Requests in
/// flight on a path that died are sent again.
///
/// In a session with kFeatureExactlyOnce a request keeps permit and generation wherever it is sent
/// again. Without it (Linux), a write waits until its path is back; the server allows that only
/// when the first copy has ended. A read takes another permit, and the old one waits likewise.
///
/// An owner with many permits does not get the last ones. An answer that does not come (storage
/// hangs) is awaited without a limit, and the others go on meanwhile.
///
/// Threads: the holder of the lane (one at a time).
/// Source:  docs/protocol.md, requests, replies, several paths.
class ClientLane final {
 public:
  /// The properties of a path that a lane needs; known when the path is up.
  struct Link {
    QueuePair* queue_pair = nullptr;
    std::span<wire::ChunkAddress> chunks;  ///< of this lane's slots; the lane updates keys
    std::uint32_t queue_depth = 0;         ///< of the session (decides the layout of immediates)
    std::uint32_t chunk_size = 0;          ///< bytes
    std::uint32_t max_io_size = 0;         ///< bytes
    bool new_rkey = false;
    bool data_rides_with_reply = false;  ///< the data of a read comes with its immediate
    bool exactly_once = false;           ///< the same for all paths of a session
    bool accessible = true;              ///< as ClientLane::allow()
  };

  /// The lane's connection on a path, for as long as the path has its number. Handles the arrivals
  /// there.
  class Connection final : public QueuePairHandler {
   public:
    std::uint64_t received() const { return received_; }  ///< arrivals
    std::uint64_t sent() const { return sent_; }          ///< requests
    bool answered() const { return answered_; }  ///< requests since it was attached last: some
    /// Intervals in which it owed answers and sent nothing, although a keepalive reply was asked
    /// for.
    unsigned silence() const { return watch_.silence(); }
    bool mute() const { return watch_.mute(); }  ///< for at least an interval since it was asked

    [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t immediate,
                                                    std::uint32_t bytes) override;
    [[nodiscard]] Complaint on_message(ConstBytes message,
                                       std::optional<std::uint32_t> immediate) override;

   private:
    friend class ClientLane;

    void ask();  ///< for a keepalive reply
    std::uint32_t receive_bytes() const { return link_.new_rkey ? sizeof(wire::RkeyMessage) : 0; }

    ClientLane* lane_ = nullptr;
    unsigned path_ = 0;
    Link link_;  ///< while it is attached
    bool answered_ = false;
    std::uint64_t received_ = 0;
    std::uint64_t sent_ = 0;
    KeepaliveWatch watch_;
  };

  /// Slots [first_slot, first_slot + slot_count) of the session belong to this lane. `unresolved`
  /// is the scope of the session; null for a lane that is alone. `opens`: for a lane of I/O, the
  /// scope of the lane that keeps order. Without kFeatureExactlyOnce an OPEN waits for cancelled
  /// writes, too: they name a device by its id, and the id may be another device's after CLOSE.
  ClientLane(std::uint16_t first_slot, std::uint16_t slot_count, Unresolved* unresolved = nullptr,
             Unresolved* opens = nullptr);
  ClientLane(const ClientLane&) = delete;
  ClientLane& operator=(const ClientLane&) = delete;

  /// A path is up: sends waiting requests, and those that were in flight on dead paths.
  void attach(unsigned path, const Link& link);
  /// A path is gone and its connection quiet. Its requests in flight go elsewhere or wait
  /// (overdue()).
  void detach(unsigned path, Instant now = Instant::max());
  /// Whether the server lets an attached path carry new requests. Requests in flight there end
  /// there. Waiting ones, and those from dead paths, are sent when a path may carry them.
  void allow(unsigned path, bool accessible);
  /// The server has forgotten the session; no path is attached. Waiting requests are brought up to
  /// date. A server without kFeatureExactlyOnce may still have the session and requests that came
  /// over another path. Requests in flight there go on waiting for their path.
  void renew();
  /// To be called at each heartbeat interval. False: an answer is due, and the path's connection
  /// for this lane has carried nothing for too long, although a keepalive reply was asked for. It
  /// is dead, even if the path's other connections live. Servers reply however slow their storage
  /// is; those without the extension are not asked.
  bool probe(unsigned path, unsigned misses_max, Instant now = Instant::max());
  /// A request has waited since `limit` for a connection that carries it. None of those that it was
  /// sent over has given a keepalive reply behind it. A path that passes only small messages may
  /// come and go all the time, and a large request would wait for ever. Requests that a live server
  /// holds do not count. Without kFeatureExactlyOnce connections are not judged.
  bool overdue(Instant limit) const;
  /// Ends overdue() requests with `error`. The result: paths that had some of them in flight; they
  /// are of no use to the rest either.
  PathMask fail_overdue(Instant limit, int error);
  /// This process itself stood still for so long, and could not have heard anything.
  void note_pause(Duration pause);
  /// A permit of the session, as the server counts them, for messages over a path before it is
  /// attached. The server certainly does not use it now that this path is back. Without
  /// kFeatureExactlyOnce it is bound to the path until that is attached: if the path dies first,
  /// the server may still work on the message. None: each may still be in use by a request on
  /// another path.
  std::optional<std::uint16_t> lend_permit(unsigned path);
  /// The server may still execute requests of this very path; their end can be learnt only there.
  bool bound(unsigned path) const;
  /// Another path will have this number; bound() must be false and nothing attached.
  void forget(unsigned path);
  /// No path will come or be allowed soon. Requests that wait for one end with `error`, and so do
  /// new ones until a path comes.
  void fail_pending(int error);
  /// The writes that wait for this very path end with `error`. Their permits go on waiting, and so
  /// do all new writes (Unresolved).
  void fail_stranded(unsigned path, int error);
  /// All paths are gone and quiet for good. Everything ends with `error`, also later requests.
  void shut_down(int error);

  bool attached() const { return choice_.attached() != 0; }
  bool attached(unsigned path) const { return choice_.attached(path); }
  /// Which paths take new requests as long as one of them is attached.
  void use(PathMask paths, PathPolicy policy) { choice_.use(paths, policy); }
  /// Requests arrive in the order in which they were submitted: all use one path while one is in
  /// flight. For messages that open and close devices, which are no I/O; if need be they use a path
  /// that is not allowed.
  ///
  /// Without kFeatureExactlyOnce an unresolved write, of this lane or cancelled in another, holds
  /// back newer reads until its end is known. A late CLOSE would close the device of a newer OPEN;
  /// a late write names its device by an id. Such a lane has a scope of its own, so that I/O does
  /// not wait too. A CLOSE passes reads that wait. It waits itself while both such a write and the
  /// first copy of a resent read may come late: that read would open a device under the id.
  void keep_order() { order_.keep(); }
  /// The first waiting request waits for the scope of the lane, although a path is there.
  bool holds_back() const {
    return open() != 0 && !waiting_.empty() && order_.holds_back(*waiting_.front(), slots_);
  }
  /// A write waits for the end of one of its owner's that was cancelled or failed.
  bool holds_back_owner() const;
  /// Sends what may go, and ends what is refused: the last unresolved write of a scope has ended,
  /// or a scope refuses.
  void resume();
  void set_latency(unsigned path, Duration latency) { choice_.set_latency(path, latency); }

  /// Sends now or as soon as a path and a permit are free. May complete at once (with an error)
  /// when nothing can be sent.
  void submit(Request& request);
  /// Gives a request up: afterwards nothing refers to it or its memory, and done() is not called.
  /// Its permit comes back with the server's answer; until then Request::scope counts it.
  void cancel(Request& request);
  /// Hands everything posted to the transport.
  void flush();

  const LaneSlots& permits() const { return slots_; }
  /// Of requests, since the path was attached last.
  unsigned in_flight(unsigned path) const { return choice_.in_flight(path); }
  Connection& connection(unsigned path) { return connections_[path]; }
  const Connection& connection(unsigned path) const { return connections_[path]; }

 private:
  /// The paths that new requests may take.
  unsigned open() const { return choice_.open(order_.kept()); }
  bool follows_scope(const Request& request) const;
  bool waits_for_permit(const Request& request) const;
  Request* next_to_go() const;
  void refuse_waiting();
  void post(Request& request);
  void transmit(std::uint16_t index);
  void paths_changed();
  void resend_stranded();
  bool overdue(const LaneSlot& slot, Instant limit) const;
  Request* overdue_waiting(Instant limit) const;
  void withdraw(const Request& request);
  void fail(LaneSlot& slot, int error);
  void free_slot(std::uint16_t index);
  [[nodiscard]] Complaint complete(Connection& connection, std::uint32_t buffer_id, int error,
                                   std::uint32_t bytes);
  void end_waiting(int error);

  std::uint16_t first_slot_;
  std::array<Connection, kMaxPaths> connections_;
  PathChoice choice_;
  LaneOrder order_;
  std::uint64_t posted_ = 0;       ///< requests so far
  std::uint32_t max_io_size_ = 0;  ///< bytes; of all paths the least; 0 = not known yet
  int down_error_ = 0;             ///< the errno for submit() while no path is open; 0 = wait
  LaneSlots slots_;
  WaitingRequests waiting_;
};

/// Receives to post when a link comes up; the lane re-posts one per arrival.
constexpr unsigned receives_needed(unsigned slots) { return 2U * slots + 8U; }

}  // namespace rtrs
