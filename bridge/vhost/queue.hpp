// SPDX-License-Identifier: BSD-3-Clause
// One virtqueue of a guest: requests from its ring to the disk, and their ends back.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "bridge/metrics/meter.hpp"
#include "bridge/vhost/guest_memory.hpp"
#include "bridge/vhost/request.hpp"
#include "bridge/vhost/split_ring.hpp"
#include "rdma/line_limit.hpp"
#include "rdma/log.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd::vhost {

/// The part of a loop that its queues use.
class QueueHost {
 public:
  /// The disk of all queues, and as it was offered.
  virtual Disk& disk() = 0;
  virtual const Offer& offer() const = 0;
  virtual rtrs::LaneLoop& lane() = 0;
  virtual nbd::BufferPool& buffers() = 0;
  /// Bytes of buffers that its queues have, and their limit. The last request may exceed it.
  virtual std::size_t& memory_used() = 0;
  virtual std::size_t most_memory() const = 0;
  virtual Meter& meter() = 0;
  virtual void say(rtrs::LogLevel level, const std::string& line) = 0;
  /// Makes a call that may wait on another thread; then on_call() of the request's queue is due.
  virtual void call(std::function<int()> call, Request& request) = 0;
  /// Something has left the queue for the lane.
  virtual void started() = 0;

 protected:
  ~QueueHost() = default;
};

/// The settings of a ring that is to start.
struct RingSettings {
  std::uint32_t size = 0;
  RingAddresses addresses;
  std::uint16_t base = 0;
  std::uint64_t features = 0;  ///< the driver's
};

/// Takes chains while its ring runs. A driver that breaks the rules stops its own ring.
///
/// Invariant: each chain that was taken is put back once, unless the ring was left, or it counts as
///            never taken.
/// Threads:   its loop's.
/// Source:    the specification of virtio 1.2, block device.
class Queue {
 public:
  Queue(QueueHost& host, unsigned index) : host_{host}, index_{index} {}
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  unsigned index() const { return index_; }
  /// The ring begins, in this memory. "" or the mistake.
  std::string start(const RingSettings& settings, std::shared_ptr<const GuestMemory> memory);
  /// No more chains are taken; is_idle() tells the end.
  void stop() {
    if (state_ == State::running) state_ = State::stopping;
  }
  /// The ring is not touched any more. The queue is idle.
  void leave_ring() { state_ = State::none; }
  void enable(bool enabled) { enabled_ = enabled; }
  /// The guest's memory is mapped anew. A ring that is not there any more stops.
  void move_to(std::shared_ptr<const GuestMemory> memory);
  /// The eventfd that calls the driver. None: it looks by itself.
  void set_call(rtrs::OwnedFd call);
  /// The eventfd that tells the driver of a ring that has stopped.
  void set_error(rtrs::OwnedFd error) { error_ = std::move(error); }
  /// The number of chains that were taken.
  std::uint16_t base() const { return ring_.base(); }

  /// Takes and begins the chains that are there, but not for ever: requests that end at once make
  /// room for more of them. False: there was none.
  bool take();
  /// Shows the driver what has ended, and calls it.
  void publish() {
    if (state_ != State::none && ring_.publish()) call_driver();
  }
  /// True: another chain can be taken now.
  bool has_more() const { return runs() && has_room() && ring_.has_more(); }
  /// Tells the driver whether it is to kick.
  void want_kicks(bool wanted) {
    if (runs()) ring_.want_kicks(wanted);
  }
  /// The lane has ended a request.
  void on_lane(Request& request);
  /// A call has ended.
  void on_call(Request& request);

  bool is_idle() const { return in_flight_ == 0; }
  std::size_t in_flight() const { return in_flight_; }
  /// A request is alone under way, and so it has usually been lately.
  bool is_single() const { return in_flight_ == 1 && singles_ >= kUsual; }
  /// Stops, cancels what is on the lane, and asks calls to end. The driver hears of errors, or its
  /// chains count as never taken, if they are the last ones that were.
  void abandon();

 private:
  static constexpr std::size_t kMaxInFlight = 256;
  /// A driver that begins to send more at a time loses is_single() once.
  static constexpr unsigned kUsual = 16;

  enum class State : std::uint8_t {
    none,      ///< there is no ring
    running,   ///< chains are taken, while the ring is enabled
    stopping,  ///< ends are shown; no chain is taken
  };

  bool runs() const { return state_ == State::running && enabled_; }
  bool has_room() const {
    return in_flight_ < kMaxInFlight && host_.memory_used() < host_.most_memory();
  }
  Request& take_request();
  void give_back(Request& request);
  void fail(const std::string& why);
  void call_driver() const;
  bool has_ended_in_order() const;
  bool begin(Request& request);
  bool read_head(Request& request, RequestHeader& header, RequestShape& shape, RangeData& range);
  void carry_out(Request& request);
  Transfer transfer_of(Request& request) const;
  void send(Request& request);
  void call(Request& request);
  void end(Request& request, int error);
  void finish(Request& request, BlockStatus status);
  void report(const Request& request, int error);

  QueueHost& host_;
  const unsigned index_;
  std::shared_ptr<const GuestMemory> memory_;
  RingSettings settings_;
  SplitRing ring_;
  State state_ = State::none;
  bool enabled_ = false;
  rtrs::OwnedFd call_;
  rtrs::OwnedFd error_;

  std::deque<Request> requests_;
  Request* free_ = nullptr;
  std::size_t in_flight_ = 0;
  unsigned singles_ = 0;               ///< in a row that came one at a time
  std::atomic<bool> given_up_{false};  ///< read by calls
  rtrs::LineLimit limit_{{.burst = 1, .period = std::chrono::seconds{1}}};
};

}  // namespace rnbd::vhost
