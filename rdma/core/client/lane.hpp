// SPDX-License-Identifier: BSD-3-Clause
// A CPU's slice of a session: some of its permits, a connection on each path, and the requests in
// flight there. All work per I/O at the client happens here, shared with no other lane.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "rdma/core/client/lane_order.hpp"
#include "rdma/core/client/lane_slots.hpp"
#include "rdma/core/client/operation.hpp"
#include "rdma/core/client/path_choice.hpp"
#include "rdma/core/client/permit_shares.hpp"
#include "rdma/core/client/race.hpp"
#include "rdma/core/client/request.hpp"
#include "rdma/core/client/waiting_requests.hpp"
#include "rdma/core/path.hpp"
#include "rdma/core/queue_pair.hpp"
#include "rdma/core/time.hpp"
#include "rdma/core/unresolved.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

/// Sends requests on any working path as permits allow, and hands the answers back. Sends requests
/// again that were in flight on a lost path.
///
/// In a session with kFeatureExactlyOnce, a request that is sent again keeps its permit and
/// generation on any path. Without it (Linux), a write waits until its path is back; the server
/// lets the path come back only when the first copy has ended. A read is sent with another permit,
/// and its old permit waits for the path.
///
/// The owner that has the fewest permits gets the next one, and one that has many does not get the
/// last ones. There is no limit on the wait for an
/// answer (storage may hang), and other requests go on meanwhile.
///
/// Threads: the holder of the lane (one at a time).
/// Source:  docs/protocol.md, requests, replies, several paths.
class ClientLane final {
 public:
  /// The properties of a connected path that a lane needs.
  struct Link {
    QueuePair* queue_pair = nullptr;
    std::span<wire::ChunkAddress> chunks;  ///< of this lane's slots; the lane updates their keys
    std::uint32_t queue_depth = 0;         ///< of the session; decides the layout of immediates
    std::uint32_t chunk_size = 0;          ///< bytes
    std::uint32_t max_io_size = 0;         ///< bytes
    bool new_rkey = false;                 ///< every reply brings a new key for its chunk
    bool data_rides_with_reply = false;    ///< the data of a read comes with its immediate
    bool exactly_once = false;             ///< the same for all paths of a session
    bool races = false;                    ///< copies may be under way on several paths
    bool accessible = true;                ///< as in ClientLane::allow()
  };

  /// The lane's connection on one path, from one generation of the path to the next. Handles the
  /// arrivals there.
  class Connection final : public QueuePairHandler {
   public:
    std::uint64_t received() const { return received_; }  ///< arrivals
    std::uint64_t sent() const { return sent_; }          ///< requests
    std::uint64_t left() const { return left_; }  ///< those that have left it while it was silent
    /// Some request was answered since the path was attached last.
    bool answered() const { return answered_; }
    /// Heartbeat intervals without a sign of life, while answers were due.
    unsigned silence() const { return race_.silence(); }
    /// Silent for at least an interval after it was asked, until now.
    bool mute() const { return silence() > 1 && !race_.lives(received_); }
    /// The answer to a question has come, and its time is not noted yet.
    bool has_answered() const { return answer_came_; }

    [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t immediate,
                                                    std::uint32_t bytes) override;
    [[nodiscard]] Complaint on_message(ConstBytes message,
                                       std::optional<std::uint32_t> immediate) override;

   private:
    friend class ClientLane;

    void on_arrival();
    void ask(Instant now);  ///< for an answer that needs no storage
    std::uint32_t receive_bytes() const { return link_.new_rkey ? sizeof(wire::RkeyMessage) : 0; }

    ClientLane* lane_ = nullptr;
    unsigned path_ = 0;
    Link link_;  ///< while it is attached
    bool answered_ = false;
    std::uint64_t received_ = 0;
    std::uint64_t sent_ = 0;
    std::uint64_t left_ = 0;
    Race race_;
    bool answer_came_ = false;
    Instant probed_ = Instant::max();  ///< last; max: not since it was attached
  };

  /// Slots [first_slot, first_slot + slot_count) of the session belong to this lane.
  ///
  /// `unresolved`: the scope that holds back this lane's requests. It is the session's for a lane
  /// of I/O, another one for the lane that keeps order, and null for a lane that is alone. `opens`:
  /// for a lane of I/O, the scope of the lane that keeps order. Without kFeatureExactlyOnce an OPEN
  /// waits for cancelled writes of I/O: they name a device by its id, which may be another device's
  /// after CLOSE and OPEN.
  ClientLane(std::uint16_t first_slot, std::uint16_t slot_count, Unresolved* unresolved = nullptr,
             Unresolved* opens = nullptr);
  ClientLane(const ClientLane&) = delete;
  ClientLane& operator=(const ClientLane&) = delete;

  /// The path is connected. Sends waiting requests, and those that were in flight on lost paths.
  void attach(unsigned path, const Link& link);
  /// The path is lost and nothing arrives from its connection any more. Its requests in flight go
  /// over another path or wait for one. `now`: for overdue().
  void detach(unsigned path, Instant now = Instant::max());
  /// Says whether the server lets an attached path carry new requests. Those that are in flight
  /// there stay there. Waiting ones, and those of lost paths, are sent when a path may carry them.
  void allow(unsigned path, bool accessible);
  /// The server has forgotten the session; no path is attached. Brings waiting requests up to date
  /// (Request::renew). A server without kFeatureExactlyOnce may still have the session, and execute
  /// requests that came over another path. Those go on waiting for that path.
  void renew();
  /// Looks whether this lane's connection on a path lives; to be called at each heartbeat interval.
  /// False: it is dead, even if the path's other connections live. An answer was due, and nothing
  /// came for too long, although it was asked. Servers answer that question however slow their
  /// storage is; those without the extension are not asked.
  bool probe(unsigned path, unsigned misses_max, Instant now = Instant::max());
  /// True: some request has waited since `limit` for a connection that carries it. No connection
  /// that it was sent over has answered questions behind it. If a path passes only small
  /// messages, it may come and go all the time, and a large request would wait for ever. Requests
  /// that a live server holds do not count. Without kFeatureExactlyOnce this is always false.
  bool overdue(Instant limit) const;
  /// Ends overdue() requests with `error`. Returns the mute paths that had some of them in flight:
  /// they are of no use to other requests either.
  PathMask fail_overdue(Instant limit, int error);
  /// The paths whose connections have been silent for so long that a race() of the same time may
  /// judge them. All their arrivals must be received before that.
  PathMask quiet(Instant now) const;
  /// Notes when the answer to a question has come, if one has.
  void note_answer(unsigned path, Instant now);
  /// Looks at the race of the lane's connections; to be called each 50 ms while anything is in
  /// flight. The requests of a connection that is silent, while another one answers, are sent again
  /// over another path. The silent one stays, and takes no new requests before something comes.
  Raced race(Instant now);
  /// No answer is due on any path.
  bool at_rest() const;
  /// There are connections on two paths or more, and the server answers late copies.
  bool may_race() const;
  /// The process itself stood still for `pause`, and received nothing: overdue() does not count it.
  void note_pause(Duration pause);
  /// Lends a permit for messages over `path` before that is attached (recovery). Returns its number
  /// in the session. Now that this path is back, the server certainly does not use that permit.
  /// Without kFeatureExactlyOnce the permit is bound to the path until the path is attached: if the
  /// path is lost before, the server may still work on a message. None: each permit may still be in
  /// use by a request on another path.
  std::optional<std::uint16_t> lend_permit(unsigned path);
  /// The server may still execute requests that came over this path, and their end can be learnt
  /// only over this path.
  bool bound(unsigned path) const;
  /// Another path will get this number. The path must be neither bound() nor attached.
  void forget(unsigned path);
  /// No path will come or be allowed soon. Requests that wait for one end with `error`, and so do
  /// new requests until a path may carry them.
  void fail_pending(int error);
  /// The writes that only this path may carry end with `error`. Their permits go on waiting for the
  /// path, and newer writes wait for them (Unresolved).
  void fail_stranded(unsigned path, int error);
  /// All paths are gone for good, and nothing arrives any more. All requests end with `error`, and
  /// so do later ones.
  void shut_down(int error);

  bool attached() const { return choice_.attached() != 0; }
  bool attached(unsigned path) const { return choice_.attached(path); }
  /// New requests take these paths, as long as one of them may carry requests.
  void use(PathMask paths, PathPolicy policy) { choice_.use(paths, policy); }
  /// From now on, requests arrive in the order in which they were submitted: while one is in
  /// flight, all use its path. This is for messages that open and close devices. They are no I/O,
  /// and without another path they use one that is not allowed.
  ///
  /// Without kFeatureExactlyOnce, an unresolved write of this lane, or one of I/O, holds back newer
  /// reads (OPENs) until its end is known. A late CLOSE would close the device of a newer OPEN, and
  /// a late write would reach it by the same id. The lane has a scope of its own, so that I/O does
  /// not wait, too. A CLOSE passes reads that wait. It waits only while both such a write and the
  /// first copy of a resent read may come late: that read would open a device under the id.
  void keep_order() { order_.keep(); }
  /// The first waiting request waits for the scope of the lane, although a path is there.
  bool holds_back() const {
    return open() != 0 && !waiting_.empty() && order_.holds_back(*waiting_.front(), slots_);
  }
  /// Some write waits for an older write of its owner, which was cancelled or failed.
  bool holds_back_owner() const;
  /// Sends the requests that may go, and ends those that a scope refuses. To be called when the
  /// last unresolved write of a scope has ended, or when a scope begins to refuse.
  void resume();
  void set_latency(unsigned path, Duration latency) { choice_.set_latency(path, latency); }

  /// Sends now or as soon as a path and a permit are free. May complete at once (with an error)
  /// when nothing can be sent.
  void submit(Request& request);
  /// Cancels a request: afterwards nothing refers to it or its memory, and done() is not called.
  /// Its permit comes back with the server's answer; until then Request::scope counts it.
  void cancel(Request& request);
  /// Hands everything posted to the transport.
  void flush();

  const LaneSlots& permits() const { return slots_; }
  /// The number of requests in flight on an attached path.
  unsigned in_flight(unsigned path) const { return choice_.in_flight(path); }
  /// Answers are due on some connection. Otherwise a peer that keeps the rules sends nothing.
  bool expects_arrivals() const;
  Connection& connection(unsigned path) { return connections_[path]; }
  const Connection& connection(unsigned path) const { return connections_[path]; }

 private:
  /// The paths that new requests may take.
  unsigned open() const { return choice_.open(order_.kept()); }
  /// The open paths that a request takes now: silent ones only if there are no others.
  unsigned ways() const { return choice_.ways(order_.kept()); }
  unsigned ways_of(std::uint16_t index) const;
  bool is_late(const Connection& connection, std::uint32_t index) const;
  void take_late(Connection& connection, std::uint16_t index);
  bool follows_scope(const Request& request) const;
  bool within_share(const Request& request) const;
  bool waits_for_permit(const Request& request) const;
  bool carries(unsigned path) const;
  Request* next_to_go() const;
  void refuse_waiting();
  void post(Request& request);
  void transmit(std::uint16_t index);
  void paths_changed();
  void resend_stranded();
  void look_at(Connection& connection, Instant now);
  bool has_witness(unsigned path) const;
  void ask_witnesses(Instant now);
  void judge(Instant now, Raced& raced);
  unsigned outrun(Connection& connection);
  void move_on();
  void move_from(unsigned path);
  bool is_held(const LaneSlot& slot) const;
  bool is_stuck(const LaneSlot& slot) const;
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
  unsigned moved_ = 0;             ///< requests that have left a silent path since the last look
  PathMask moving_ = 0;  ///< silent paths that were beaten by one that answers, at the last look
  /// Waits for permits do not count the time until then in which a permit's request was carried.
  Instant carried_until_{};
  int down_error_ = 0;  ///< errno for submit() while no path is open; 0 = wait
  LaneSlots slots_;
  PermitShares shares_;
  WaitingRequests waiting_{shares_};
};

/// Receives to post when a link comes up; the lane re-posts one per arrival.
constexpr unsigned receives_needed(unsigned slots) { return 2U * slots + 8U; }

}  // namespace rtrs
