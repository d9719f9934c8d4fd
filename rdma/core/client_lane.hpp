// A session in miniature for one CPU: its slice of the permits, its connection, its requests in
// flight. All that happens per I/O at the client happens here, shared with no other lane.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "rdma/core/queue_pair.hpp"
#include "rdma/wire/messages.hpp"

namespace rtrs {

class ClientLane;

/// One message to the server and its answer. Owned by the caller, who keeps it and all memory it
/// names until done() ran or cancel() returned.
struct Request {
  enum class State : std::uint8_t { idle, waiting, in_flight };

  ConstBytes message;      ///< user message, at most kMaxUserMessage bytes
  ConstBytes write_data;   ///< data for the server (a write), at most max_io_size bytes
  MutableBytes read_data;  ///< where the answer goes (a read), at most max_io_size bytes
  bool is_read = false;    ///< RTRS direction; a read may have no buffer (flush)
  /// Called once with the lane held; may submit further requests.
  void (*done)(ClientLane& lane, Request& request) = nullptr;
  void* context = nullptr;

  int error = 0;  ///< errno of the answer, 0 = success

  // Used by the lane only.
  State state = State::idle;
  std::uint16_t slot = 0;
  Ticket ticket = 0;
  Request* next = nullptr;
};

inline constexpr std::size_t kMaxUserMessage = 288;

/// Sends requests on one connection as permits allow and hands the answers back.
///
/// Threads: whoever holds the lane (one at a time).
/// Source:  docs/protocol.md, requests, replies.
class ClientLane final : public QueuePairHandler {
 public:
  /// What a lane needs to work, known when its path is up.
  struct Link {
    QueuePair* queue_pair = nullptr;
    std::span<wire::ChunkAddress> chunks;  ///< of this lane's slots; the lane updates keys
    std::uint32_t queue_depth = 0;         ///< of the session (decides the layout of immediates)
    std::uint32_t chunk_size = 0;          ///< bytes
    std::uint32_t max_io_size = 0;         ///< bytes
    bool new_rkey = false;
    bool data_rides_with_reply = false;  ///< the data of a read comes with its immediate
  };

  /// Slots [first_slot, first_slot + slot_count) of the session belong to this lane.
  ClientLane(std::uint16_t first_slot, std::uint16_t slot_count);
  ClientLane(const ClientLane&) = delete;
  ClientLane& operator=(const ClientLane&) = delete;

  /// The connection is up; what waits is sent.
  void attach(const Link& link);
  /// The connection is gone and quiet; everything accepted ends with `error`, and so does what
  /// comes later.
  void detach(int error);
  bool attached() const { return link_.queue_pair != nullptr; }

  /// Sends now or as soon as a permit is free. May complete at once (with an error) when nothing
  /// can be sent.
  void submit(Request& request);
  /// Gives a request up: afterwards nothing refers to it or its memory, and done() is not called.
  /// Its permit comes back with the server's answer.
  void cancel(Request& request);
  /// Hands everything posted to the transport.
  void flush();

  unsigned permits_in_use() const { return slot_count_ - static_cast<unsigned>(free_.size()); }
  unsigned slot_count() const { return slot_count_; }
  /// Receives to post when the link comes up; the lane re-posts one per arrival.
  static constexpr unsigned receives_needed(unsigned slots) { return 2U * slots + 8U; }
  std::uint64_t received() const { return received_; }  ///< arrivals so far: a sign of life

  [[nodiscard]] Complaint on_write_with_immediate(std::uint32_t immediate,
                                                  std::uint32_t bytes) override;
  [[nodiscard]] Complaint on_message(ConstBytes message,
                                     std::optional<std::uint32_t> immediate) override;

 private:
  struct Slot {
    Request* request = nullptr;  ///< null while in flight: cancelled, the answer is still to come
    bool in_flight = false;
    bool exposed = false;
    std::uint32_t expected_bytes = 0;
  };

  void post(Request& request);
  [[nodiscard]] Complaint complete(std::uint32_t buffer_id, int error, std::uint32_t bytes);
  void start_waiting();
  void end(Request& request, int error);
  std::uint32_t receive_bytes() const { return link_.new_rkey ? sizeof(wire::RkeyMessage) : 0; }

  std::uint16_t first_slot_;
  std::uint16_t slot_count_;
  Link link_;
  int down_error_ = 0;  ///< what submit() answers while detached for good; 0 = wait for attach
  std::vector<Slot> slots_;
  std::vector<std::uint16_t> free_;  ///< indexes into slots_, used as a stack: the warm one first
  Request* waiting_head_ = nullptr;
  Request* waiting_tail_ = nullptr;
  std::uint64_t received_ = 0;
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

  /// Called by whoever waits, before start(): is told when the operation finishes.
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
