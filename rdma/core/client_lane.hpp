// SPDX-License-Identifier: BSD-3-Clause
// A session in miniature for one CPU: its slice of the permits, its connection on each path, its
// requests in flight. All that happens per I/O at the client happens here, shared with no other
// lane.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "rdma/core/client/slot.hpp"
#include "rdma/core/path.hpp"
#include "rdma/core/queue_pair.hpp"
#include "rdma/core/time.hpp"
#include "rdma/core/unresolved.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

class ClientLane;

/// One message to the server and its answer. Owned by the caller: it keeps the request and all
/// memory that it names until done() ran or cancel() returned.
struct Request {
  enum class State : std::uint8_t { idle, waiting, in_flight };

  ConstBytes message;      ///< user message, at most kMaxUserMessage bytes
  ConstBytes write_data;   ///< data for the server (a write), at most max_io_size bytes
  MutableBytes read_data;  ///< where the answer goes (a read), at most max_io_size bytes
  bool is_read = false;    ///< RTRS direction; a read may have no buffer (flush)
  /// Called once with the lane held; may submit further requests, but must not give up or destroy
  /// others: one of those may be in the midst of being submitted, and have led here.
  void (*done)(ClientLane& lane, Request& request) = nullptr;
  /// Called with the lane held before the request goes into a new session. Brings the message up to
  /// date; its length must stay. Null: nothing in it depends on the session.
  void (*renew)(Request& request) = nullptr;
  /// Counts the request when it is cancelled or failed, until its end is known. It also names the
  /// owner, and permits are shared among owners. Null: there is none. Must outlive the request.
  const std::shared_ptr<Unresolved>* scope = nullptr;
  /// Is held back while an unresolved write of its owner counts there: that one could undo it.
  bool waits_for_scope = false;
  void* context = nullptr;

  int error = 0;  ///< errno of the answer, 0 = success

  // Used by the lane only.
  State state = State::idle;
  std::uint16_t slot = 0;
  Ticket ticket = 0;
  Instant waits_since = Instant::max();  ///< for a connection that carries it
  Request* next = nullptr;
};

inline constexpr std::size_t kMaxUserMessage = 288;  ///< bytes, with the additions of RTRS

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
  /// Intervals in which it owed answers and sent nothing, although a keepalive reply was asked for.
  unsigned silence(unsigned path) const { return paths_[path].silent; }
  /// For at least an interval since it was asked.
  bool mute(unsigned path) const { return paths_[path].mute(); }
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

  bool attached() const { return attached_ != 0; }
  bool attached(unsigned path) const { return (attached_ >> path & 1) != 0; }
  /// Which paths take new requests as long as one of them is attached.
  void use(PathMask paths, PathPolicy policy) {
    in_use_ = paths;
    policy_ = policy;
  }
  /// Requests arrive in the order in which they were submitted: all use one path while one is in
  /// flight. For messages that open and close devices, which are no I/O; if need be they use a path
  /// that is not allowed.
  ///
  /// Without kFeatureExactlyOnce an unresolved write, of this lane or cancelled in another, holds
  /// back newer reads until its end is known. A late CLOSE would close the device of a newer OPEN;
  /// a late write names its device by an id. Such a lane has a scope of its own, so that I/O does
  /// not wait too. A CLOSE passes reads that wait. It waits itself while both such a write and the
  /// first copy of a resent read may come late: that read would open a device under the id.
  void keep_order() { ordered_ = true; }
  /// The first waiting request waits for the scope of the lane, although a path is there.
  bool holds_back() const {
    return open() != 0 && waiting_head_ != nullptr && held_back(*waiting_head_);
  }
  /// A write waits for the end of one of its owner's that was cancelled or failed.
  bool holds_back_owner() const;
  /// The last unresolved write of a scope has ended, or a scope refuses.
  void resume() { start_waiting(); }
  void set_latency(unsigned path, Duration latency) { paths_[path].latency = latency; }

  /// Sends now or as soon as a path and a permit are free. May complete at once (with an error)
  /// when nothing can be sent.
  void submit(Request& request);
  /// Gives a request up: afterwards nothing refers to it or its memory, and done() is not called.
  /// Its permit comes back with the server's answer; until then Request::scope counts it.
  void cancel(Request& request);
  /// Hands everything posted to the transport.
  void flush();

  unsigned permits_in_use() const { return slot_count_ - static_cast<unsigned>(free_.size()); }
  unsigned slot_count() const { return slot_count_; }
  /// Receives to post when a link comes up; the lane re-posts one per arrival.
  static constexpr unsigned receives_needed(unsigned slots) { return 2U * slots + 8U; }
  std::uint64_t received(unsigned path) const { return paths_[path].received; }  ///< arrivals
  std::uint64_t sent(unsigned path) const { return paths_[path].sent; }          ///< requests
  /// Requests over the path since it was attached last.
  bool answered(unsigned path) const { return paths_[path].answered; }  ///< some of them
  bool unanswered(unsigned path) const { return paths_[path].in_flight > 0; }
  unsigned in_flight(unsigned path) const { return paths_[path].in_flight; }

  /// Handles the arrivals on this lane's connection of a path.
  QueuePairHandler& handler(unsigned path) { return paths_[path]; }

 private:
  static constexpr std::uint8_t kNoPath = 0xFF;

  struct Path final : QueuePairHandler {
    ClientLane* lane = nullptr;
    unsigned index = 0;
    Link link;
    unsigned in_flight = 0;
    bool answered = false;
    Duration latency{};
    std::uint64_t received = 0;
    std::uint64_t sent = 0;
    std::uint64_t received_before = 0;  ///< at the last probe()
    unsigned silent = 0;                ///< intervals since the server was asked
    bool asked = false;                 ///< for a sign of life
    bool acked = false;                 ///< it has given one
    unsigned signs = 0;                 ///< of life since it was attached
    bool mute() const { return silent > 1; }

    [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t immediate,
                                                    std::uint32_t bytes) override;
    [[nodiscard]] Complaint on_message(ConstBytes message,
                                       std::optional<std::uint32_t> immediate) override;
    std::uint32_t receive_bytes() const { return link.new_rkey ? sizeof(wire::RkeyMessage) : 0; }
  };

  /// The newer requests that wait until a slot is free.
  struct Holds {
    UnresolvedToken newer;  ///< in the lane's scope
    UnresolvedToken opens;  ///< in the scope of the lane that keeps order
  };
  struct Slot {
    Request* request = nullptr;  ///< null unless free: its caller has left
    SlotState state = SlotState::free;
    Direction direction = Direction::read;
    std::uint8_t path = kNoPath;  ///< in_flight: on it; quarantined: lost with it
    bool exposed = false;
    bool arrived = false;       ///< over this path it has certainly reached the server
    std::uint8_t arrivals = 0;  ///< paths over which it had.
    std::uint8_t losses = 0;    ///< paths that it was lost with since it waits
    std::uint32_t expected_bytes = 0;
    std::uint32_t generation = 0;          ///< of the newest change in this slot
    std::uint64_t order = 0;               ///< among all requests of the lane
    Instant waits_since = Instant::max();  ///< for a connection that carries it
    std::shared_ptr<Unresolved> scope;     ///< counts it until it is free; null: it does not
    Holds holds;

    bool is_write() const { return direction == Direction::write; }
    bool is_stranded() const {
      return state == SlotState::retry || state == SlotState::quarantined;
    }
  };

  /// After so many lives of paths one more will not help a request that waits.
  static constexpr std::uint8_t kLives = 8;

  bool fits(const Request& request) const;
  bool follows_scope(const Request& request) const;
  bool within_share(const Request& request) const;
  unsigned permits_of(const Unresolved* owner) const;
  bool held_back(const Request& request) const;
  bool read_may_come_late() const;
  Request* next_to_go() const;
  Request* first_held_back() const;
  void refuse_waiting();
  void unlink(Request& request);
  void enqueue(Request& request);
  /// The paths that new requests may take.
  unsigned open() const {
    const unsigned allowed = attached_ & ~forbidden_;
    return allowed == 0 && ordered_ ? attached_ : allowed;
  }
  unsigned choose();
  unsigned choose_best();
  void post(Request& request);
  void transmit(std::uint16_t index, unsigned path);
  void resend_stranded();
  void strand(Slot& slot);
  Peer peer() const { return exactly_once_ ? Peer::own : Peer::kernel; }
  SlotStep foresee(const Slot& slot, SlotEvent event) const;
  SlotStep step(Slot& slot, SlotEvent event);
  void hold(Slot& slot, Hold what);
  static bool on_path(const Slot& slot, unsigned path);
  void ask(Path& path);
  bool holds_waiting(unsigned path) const;
  void note_life(unsigned path);
  void note_wait(unsigned path, Instant now);
  bool permits_wait() const;
  bool waits_for_permit(const Request& request) const;
  bool overdue(const Slot& slot, Instant limit) const;
  Request* overdue_waiting(Instant limit) const;
  void withdraw(const Request& request);
  void hold_back_newer(Slot& slot);
  void hold_back_opens(Slot& slot);
  void lend(std::uint16_t index, unsigned path);
  void release(unsigned path);
  void forbid(unsigned path, bool forbidden);
  void fail(Slot& slot, int error);
  void count_in_scope(Slot& slot, const Request& request);
  void free_slot(std::uint16_t index);
  [[nodiscard]] Complaint complete(Path& path, std::uint32_t buffer_id, int error,
                                   std::uint32_t bytes);
  void start_waiting();
  void end_waiting(int error);
  void end(Request& request, int error);

  std::uint16_t first_slot_;
  std::uint16_t slot_count_;
  Unresolved* unresolved_;
  Unresolved* opens_;
  std::array<Path, kMaxPaths> paths_;
  PathMask attached_ = 0;
  PathMask forbidden_ = 0;  ///< of those that are attached
  PathMask in_use_ = 0xFF;
  PathPolicy policy_ = PathPolicy::min_inflight;
  unsigned turn_ = 0;  ///< the path that was chosen last
  bool ordered_ = false;
  std::uint64_t posted_ = 0;  ///< requests so far
  bool exactly_once_ = false;
  std::uint32_t max_io_size_ = 0;  ///< bytes; 0 = not known yet
  int down_error_ = 0;             ///< the errno for submit() while no path is open; 0 = wait
  std::vector<Slot> slots_;
  std::vector<std::uint16_t> free_;  ///< indexes into slots_, used as a stack: the warm one first
  Request* waiting_head_ = nullptr;
  Request* waiting_tail_ = nullptr;
};

/// Something that takes one or more requests on one lane and that a caller waits for as a whole.
///
/// Threads: start() and cancel() with the lane held; finished() likewise, or after the wait ended.
class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;

  /// Submits the first requests; may finish at once.
  virtual void start(ClientLane& lane) = 0;
  /// Gives up: afterwards the lane refers to nothing of this operation.
  virtual void cancel(ClientLane& lane) = 0;

  bool finished() const { return finished_; }
  int error() const { return error_; }  ///< errno, valid once finished

  /// Called by a waiter before start(): the callback runs when the operation finishes, like
  /// Request::done, and with the same restriction.
  void on_finish(void (*callback)(void*), void* context) {
    callback_ = callback;
    context_ = context;
  }

 protected:
  void finish(int error) {
    error_ = error;
    finished_ = true;
    if (callback_ != nullptr) callback_(context_);
  }

 private:
  bool finished_ = false;
  int error_ = 0;
  void (*callback_)(void*) = nullptr;
  void* context_ = nullptr;
};

}  // namespace rtrs
