// SPDX-License-Identifier: BSD-3-Clause
// An NBD connection after its handshake: requests in, replies out, whole batches at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "bridge/nbd/budget.hpp"
#include "bridge/nbd/commands.hpp"
#include "bridge/nbd/handshake.hpp"
#include "bridge/nbd/replies.hpp"
#include "bridge/nbd/request.hpp"
#include "bridge/nbd/request_meter.hpp"
#include "bridge/nbd/requests.hpp"
#include "rdma/one_call.hpp"
#include "rdma/transport/tcp/stream.hpp"

namespace rnbd::nbd {

class Worker;

/// Cuts the bytes that arrive into requests, has them carried out, and sends the replies. A client
/// that breaks the protocol or goes away takes its requests with it; others are not disturbed.
///
/// Threads: its worker's; calls that may wait run on the call pool.
/// Source:  the NBD protocol, transmission.
class Connection {
 public:
  /// Takes the socket over. `lane` carries the requests.
  Connection(Worker& worker, int socket, Agreement agreement, rtrs::LaneLoop& lane,
             const rtrs::Log& log);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  int socket() const { return stream_.descriptor(); }
  /// The events to poll the socket for; 0 = only whether the client has gone.
  short events() const;
  /// The client has sent something, or has gone.
  void on_socket(short revents);
  /// Waits for the client's next request by receiving it, which saves a system call, for at most
  /// some milliseconds. False: none came. For a client that is alone, has just been answered, and
  /// so is likely to go on.
  bool wait_for_request();
  /// The same, and its last reply leaves with the same system call. When owes_one_reply().
  bool answer_and_wait(rtrs::OneCall& call);
  /// Nothing is under way, and nothing is left to send.
  bool at_rest() const {
    return reading() && requests_.in_flight() == 0 && replies_.empty() && !more() &&
           !stream_.has_unsent();
  }
  /// A small reply is left to send, and nothing else is to be done.
  bool owes_one_reply() const {
    return reading() && requests_.in_flight() == 1 && replies_.is_one_of(rtrs::OneCall::kMost) &&
           !more() && !stream_.encrypted();
  }
  /// Notes a turn of its worker. Returns the number of those in a row that found it at rest.
  unsigned count_quiet(bool quiet) { return quiet_turns_ = quiet ? quiet_turns_ + 1 : 0; }
  /// One request is on the lane, as has been usual lately, and nothing else is to be done.
  bool one_under_way() const;
  /// More has arrived than was received.
  bool more() const { return reading() && (more_ || stream_.has_more()); }

  /// The lane has ended a request.
  void on_lane(Request& request);
  /// The turn of a request's question for the right to change the device has come.
  void start_claim(Request& request);
  /// The other one that has asked for it is answered.
  void claim_again(Request& request);
  /// A call that could wait has ended with `error`.
  void on_call(Request& request, int error);
  /// Sends the replies that are due, and takes up requests that waited for room.
  void send();

  /// Begins with the bytes of requests that another process has received. False: too many for a
  /// client that keeps to the protocol.
  bool begin_with_unread();
  /// No more requests; those in flight are still answered. Then the connection is finished, and
  /// release() returns the unread bytes.
  void prepare_release() { releasing_ = true; }
  /// None if the client has left.
  std::optional<Released> release();
  /// Another process could go on with it. That cannot have the keys of TLS.
  bool can_be_handed_over() const {
    return !watched() && intake_ == Intake::open && !releasing_ && !stream_.encrypted() &&
           agreement_.device->leave_behind().has_value();
  }
  /// No more requests; those in flight are still answered.
  void drain();
  /// The client gets no more answers. Its requests may still end for a while, so that its device
  /// can be closed; at given_up_at() give_up() is due.
  void hang_up();
  /// The requests of the connection are given up.
  void give_up();
  bool left() const { return intake_ == Intake::left; }
  /// Only its last answers are due.
  bool ending() const {
    return releasing_ || intake_ == Intake::ending || intake_ == Intake::drained;
  }
  /// The device has `size` bytes by now. False: calls are under way, which look at the size.
  bool grow(std::uint64_t size);
  /// True: the adopter of the connection watches it.
  bool watched() const { return agreement_.watched != nullptr; }
  bool is_watched_by(const Watched* observer) const {
    return watched() && agreement_.watched.get() == observer;
  }
  std::chrono::steady_clock::time_point given_up_at() const { return given_up_at_; }
  /// Nothing is under way any more, and nothing more will come.
  bool finished() const {
    return (intake_ != Intake::open || releasing_) && requests_.in_flight() == 0 &&
           (left() || !stream_.has_unsent());
  }
  bool releasing() const { return releasing_; }
  /// No more requests until resume(); those in flight are still answered. Then it is still().
  void pause() { paused_ = true; }
  void resume();
  bool paused() const { return paused_; }
  /// Pausing, with all requests answered.
  bool still() const { return paused_ && requests_.in_flight() == 0 && !stream_.has_unsent(); }
  /// Pausing, and the client must do something before it is still.
  bool pauses_by_client() const {
    return paused_ && !left() && !still() &&
           (full_ || stream_.has_unsent() || (arriving_ != nullptr && requests_.in_flight() == 1));
  }
  bool encrypted() const { return stream_.encrypted(); }
  /// The device. Only a thread that may wait should destroy it.
  Lease take_lease() { return std::move(agreement_.device); }
  rtrs::LaneLoop& lane() const { return *lane_; }

 private:
  static constexpr std::size_t kStaging = 256 * 1024;

  enum class Intake : std::uint8_t {
    open,     ///< takes requests
    ending,   ///< its last bytes, a goodbye, have arrived; takes the requests among them
    drained,  ///< takes none, but answers those in flight
    left,     ///< nobody waits for answers
  };

  // connection.cpp: arriving bytes
  bool reading() const {
    return intake_ == Intake::open && !crowded_ &&
           (!begins_none() || arriving_ != nullptr);  // of one that has begun
  }
  bool begins_none() const { return releasing_ || paused_; }
  bool listens_for_end() const { return intake_ == Intake::open && crowded_ && staged_ < kStaging; }
  void receive(int flags);
  void receive_end();
  bool ends_with_goodbye() const;
  bool receive_once(int flags, std::size_t& room, std::size_t& received);
  void parse();
  bool take_payload(const std::byte* from, std::size_t size, std::size_t& used);
  void end_payload();
  template <Framing framing>
  void begin(const std::byte* from);
  void break_off(const std::string& why);
  void recycle(Request& request);

  // The way of requests to the device.
  void execute(Request& request);
  void start(Request& request);
  void claim(Request& request);
  std::optional<int> end_claim(Request& request, int error);
  void call(Request& request);
  void start_calls();
  /// The device has ended a request, or a piece of a large one.
  void end_piece(Request& request, int error) {
    const bool goes_on = request.rest != 0 && error == 0 && !left();
    return goes_on && commands_.next_piece(request) ? start(request) : answer(request, error);
  }
  void answer(Request& request, int error);

  Worker& worker_;
  Agreement agreement_;
  rtrs::tcp::Stream stream_;
  rtrs::LaneLoop* lane_;
  const rtrs::Log& log_;

  Intake intake_ = Intake::open;
  bool releasing_ = false;  ///< begins no request, and ends then
  bool paused_ = false;     ///< begins no request at the moment
  bool crowded_ = false;    ///< arrived bytes wait until a request ends
  bool more_ = false;
  bool full_ = false;  ///< the socket takes no replies at the moment
  unsigned quiet_turns_ = 0;
  std::chrono::steady_clock::time_point given_up_at_{};
  std::atomic<bool> given_up_{false};  ///< read by calls

  std::unique_ptr<std::byte[]> staging_;
  std::size_t staged_ = 0;       ///< bytes in it that are not taken yet
  std::size_t read_size_;        ///< bytes to receive at the begin of a request
  Request* arriving_ = nullptr;  ///< with an error: its payload is thrown away
  std::size_t payload_ = 0;      ///< bytes of the payload of `arriving_`
  std::size_t arrived_ = 0;      ///< bytes of that payload that have arrived

  Requests requests_;
  Commands commands_;
  Share calls_;                   ///< that are made
  std::deque<Request*> waiting_;  ///< for a call to end, in order
  Replies replies_;
  RequestMeter meter_;
};

}  // namespace rnbd::nbd
