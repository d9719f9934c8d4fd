// SPDX-License-Identifier: BSD-3-Clause
// Threads that move requests between NBD connections and one lane of a session each, and what all
// of them share.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "bridge/metrics/meter.hpp"
#include "bridge/nbd/budget.hpp"
#include "bridge/nbd/call_pool.hpp"
#include "bridge/nbd/connection.hpp"
#include "rdma/mailbox.hpp"
#include "rdma/one_call.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd::nbd {

/// The calls and memory that connections share. Each connection also has one call and some memory
/// of its own, so that connections without an answer never hold up the others.
///
/// Threads: any.
struct Pool {
  /// Calls beyond the one that each connection may have at any time.
  static constexpr std::size_t kMoreCalls = 128;
  /// For devices that are being closed, which takes some seconds at most.
  static constexpr std::size_t kClosing = 64;
  /// Units: bytes, beyond those that each connection owns.
  static constexpr std::size_t kMemory = std::size_t{512} * 1024 * 1024;

  explicit Pool(std::size_t max_connections) : calls{max_connections + kMoreCalls + kClosing} {}

  CallPool calls;
  MeterBook meters;
  Budget more_calls{kMoreCalls};
  Budget memory{kMemory};
};

/// An event loop over the sockets of its clients and the connections of its lane. It takes all
/// arrivals at once, and sends all output together. Clients that have long sent nothing rest: a
/// turn for the others costs the same however many these are.
///
/// Threads: adopt(), grow(), stop() and connections() any; the others its own.
class Worker {
 public:
  /// `make_call`: null, where each system call is to send or to wait.
  Worker(unsigned index, Pool& pool, rtrs::Log log, const rtrs::MakeOneCall& make_call);
  /// After stop(); waits for the thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Takes over a client with its socket.
  void adopt(int socket, Agreement agreement);
  unsigned connections() const { return count_.load(); }
  /// The device of the client that is watched so has `size` bytes by now. False: ask again later.
  /// Waits for the worker's turn.
  bool grow(const Watched* client, std::uint64_t size);
  /// Ends the client that is watched so, between two requests. The answer comes when that is done;
  /// none if it has left, or is another worker's.
  std::future<std::optional<Released>> release(const Watched* client);
  using Releases = std::vector<std::future<std::optional<Released>>>;
  /// Ends each client that another process could go on with, as release() does.
  std::future<Releases> release_all();
  /// Pauses each client that another process could go on with. The answer comes when all of these
  /// are still; it counts the others, which go on.
  struct Staying {
    unsigned encrypted = 0;  ///< clients over TLS
    unsigned leaving = 0;    ///< clients whose last answers are due
    unsigned others = 0;     ///< clients whose disks nobody else could go on with
  };
  enum class Others : std::uint8_t {
    go_on,
    end,  ///< they begin no request any more, and leave
  };
  std::future<Staying> pause(Others others);
  /// The number of paused clients that are not still, since they send no more of a request or read
  /// no answers.
  std::future<unsigned> count_silent();
  /// Lets the paused clients go on.
  void resume();
  /// Answers the requests in flight, for at most `patience`, and ends.
  void stop(std::chrono::milliseconds patience);

  /// The pool that its connections share with those of other workers.
  Pool& pool() const { return pool_; }
  /// For the data of its connections' requests.
  BufferPool& buffers() { return buffers_; }
  /// Starts the request's job; it leaves with the others of this turn.
  void start(Request& request);
  /// False: the lane has so few permits that a question for a right might take all.
  bool may_claim(const Connection& connection) { return most_claims(lane_of(connection)) > 0; }
  /// The request asks for the right to change its device, as soon as few others of its lane do.
  void claim(Request& request);
  /// The request does so no more.
  void forget_claim(Request& request);
  /// One of the connection's has asked.
  void claim_ended(const Connection& connection);
  /// The same question of another one has been answered.
  ///
  /// Threads: any.
  void claim_again(Request& request);
  /// Makes a call that may wait on another thread; its connection learns of the end.
  void call(std::function<int()> call, Request& request);

 private:
  /// The worker's lane, as long as a client uses it.
  struct Lane {
    std::shared_ptr<LaneSource> source;
    std::unique_ptr<rtrs::LaneLoop> loop;
    unsigned users = 0;
    std::deque<Request*> unclaimed{};  ///< requests whose question waits for its turn, in order
    unsigned claims = 0;               ///< that are under way
    bool started = false;              ///< something waits for flush()
    bool more = false;
    std::size_t first = 0;  ///< in polled_
    std::size_t count = 0;
  };

  /// The only thing that the next turn waits for.
  enum class Alone : std::uint8_t { no, request, answer };

  void run();
  Alone alone() const;
  bool wait_alone();
  void forget_polled();
  void wait();
  void let_others_run();
  int give_up_the_late();
  void serve_sockets();
  bool lay_to_rest(std::list<Connection>::iterator connection);
  void wake(const Connection& connection);
  void wake_ready();
  void serve_lanes();
  bool take_ended();
  void flush_lanes();
  void send_replies();
  void bury();
  void tell_still();
  void run_posted();
  void add(int socket, Agreement agreement);
  Lane& lane_of(const std::shared_ptr<LaneSource>& source);
  Lane& lane_of(const Connection& connection);
  static unsigned most_claims(const Lane& lane);
  void start_claims(Lane& lane);

  const unsigned index_;
  Pool& pool_;
  const rtrs::Log log_;
  rtrs::Mailbox<std::function<void()>> posted_;
  BufferPool buffers_;
  std::list<Lane> lanes_;
  std::list<Connection> connections_;  ///< those that each turn looks at
  std::list<Connection> resting_;      ///< the others; `doze_` looks at their sockets
  std::map<const Connection*, std::list<Connection>::iterator> places_;  ///< in resting_
  rtrs::OwnedFd doze_;  ///< an epoll instance; none: nobody rests
  std::vector<pollfd> polled_;
  std::size_t first_socket_ = 0;  ///< in polled_, and behind the sockets perhaps `doze_`
  bool answered_ = false;         ///< since the last wait, so that a request is likely to follow
  bool started_ = false;          ///< since the last wait: an answer is likely to follow
  std::size_t moved_ = 0;         ///< requests and answers since the last wait() looked
  std::map<const Connection*, std::promise<std::optional<Released>>> releasing_;
  std::optional<std::promise<Staying>> still_;  ///< of pause(), until all are
  Staying staying_;                             ///< for that
  unsigned alone_ = 0;                          ///< turns in a row that waited for one socket only
  rtrs::MakeOneCall make_call_;
  std::unique_ptr<rtrs::OneCall> call_;  ///< its thread's; what is sent may wait for the next turn
  std::chrono::steady_clock::time_point no_yield_before_{};
  bool stopping_ = false;
  std::chrono::steady_clock::time_point deadline_{};  ///< when stopping

  std::atomic<unsigned> count_{0};
  std::thread thread_;
};

}  // namespace rnbd::nbd
