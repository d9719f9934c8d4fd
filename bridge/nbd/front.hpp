// SPDX-License-Identifier: BSD-3-Clause
// An NBD server in front of a client: listens, shakes hands, hands connections to its workers.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/nbd/exports.hpp"
#include "bridge/nbd/listener.hpp"
#include "bridge/nbd/worker.hpp"
#include "rdma/complaint_log.hpp"
#include "rdma/mailbox.hpp"
#include "rdma/one_call.hpp"

namespace rnbd::nbd {

struct FrontOptions {
  unsigned workers = 1;            ///< as many as a session has lanes, or fewer
  unsigned max_connections = 256;  ///< clients at the same time
  FrontTls tls = {};
  rtrs::Log log;
  rtrs::MakeOneCall make_call = nullptr;  ///< for the workers' threads; null: none
};

/// Threads: one that accepts, one per handshake, the workers; the functions any.
class Front {
 public:
  /// Listens already; serves after start(), and lets clients in after open_door().
  Front(Exports& exports, std::vector<Listener> listeners, FrontOptions options);
  ~Front();
  Front(const Front&) = delete;
  Front& operator=(const Front&) = delete;

  /// Errors: std::system_error (no threads).
  void start();
  /// Not while it is open, not after stop(), and behind pause() only after resume().
  void open_door();
  /// Takes over a client after its negotiation. False: no client is accepted any more.
  bool adopt(int socket, Agreement agreement);
  /// The device of the client that is watched so has `size` bytes by now. False: ask again later.
  /// Between start() and stop().
  bool grow(const Watched* client, std::uint64_t size);
  /// A client that ends between two requests.
  class Releasing {
   public:
    /// None: it has left, or its requests do not end in time; then it goes on until stop().
    std::optional<Released> await(std::chrono::steady_clock::time_point until);

   private:
    friend class Front;
    std::vector<std::future<std::optional<Released>>> answers_;  ///< one of each worker
  };
  /// Begins to end the client that is watched so. Between start() and stop().
  Releasing release(const Watched* client);
  /// Clients that end between two requests.
  class ReleasingAll {
   public:
    /// The clients whose requests end in time; the others go on until stop().
    std::vector<Released> await(std::chrono::steady_clock::time_point until);

   private:
    friend class Front;
    std::vector<std::future<Worker::Releases>> begun_;  ///< one of each worker
  };
  /// Accepts nobody any more, and begins to end all clients that another process could go on with.
  /// Between start() and stop().
  ReleasingAll release_all();
  /// Closes the door to others, and lets clients end their handshake, until then at most. Those who
  /// are served go on. Behind it pause() or open_door(). True: all have ended it.
  bool let_meet(std::chrono::steady_clock::time_point until);
  /// The result of pause().
  struct Pause {
    bool still = false;       ///< all requests of those who could be handed over are answered
    Worker::Staying staying;  ///< those who could not; they go on
    unsigned silent = 0;      ///< those who are not still by their own fault
  };
  /// Closes the door, and has no client begin a request any more that another process could go on
  /// with, until resume() or release_all(). Between start() and stop().
  Pause pause(std::chrono::steady_clock::time_point until,
              Worker::Others others = Worker::Others::go_on);
  /// Lets them go on, and accepts clients of another process. The door stays closed.
  void resume();
  /// Waits until the disks of clients that have ended are closed. False: not until then.
  bool await_closed(std::chrono::steady_clock::time_point until) {
    return pool_.calls.await_idle(until);
  }
  /// Adds a listener.
  void add(std::vector<Listener> listeners);
  /// Answers the requests in flight, for at most `patience`, and ends every connection.
  void stop(std::chrono::milliseconds patience);

  /// The figures for monitoring. Between start() and stop().
  struct Usage {
    unsigned clients = 0;    ///< that are served
    std::size_t memory = 0;  ///< bytes beyond those that each connection owns
  };
  Usage usage() const;
  /// By the names of the devices.
  const MeterBook& meters() const { return pool_.meters; }
  MeterBook& meters() { return pool_.meters; }

 private:
  void accept_clients();
  void stop_accepting();
  void close_door();
  bool take_up_listeners();
  /// A client that has not chosen its export yet. The oldest makes room when there are too many.
  struct Meeting {
    int socket = -1;
    bool turned_away = false;  ///< guarded by mutex_, as the next
    bool chosen = false;       ///< it is about to hear that it has its export
  };
  using Meetings = std::list<Meeting>;

  void admit(int socket);
  bool make_room();
  void meet(Meetings::iterator place);
  bool hand_over(Meetings::iterator place, Agreement& agreement);
  Worker& worker_for(const Agreement& agreement);
  void forget(Meetings::iterator place);
  void complain(const std::string& text);
  static rtrs::Log into(rtrs::ComplaintLog& complaints);

  Exports& exports_;
  std::vector<Listener> listeners_;  ///< the accepting thread's, once it runs
  const FrontOptions options_;
  // Separate, so that one kind of trouble does not hide another.
  rtrs::ComplaintLog accept_complaints_;     ///< clients that were not accepted
  rtrs::ComplaintLog handshake_complaints_;  ///< clients in their handshake
  rtrs::ComplaintLog request_complaints_;    ///< clients that are served
  rtrs::WakeUp wake_;                        ///< for the thread that accepts
  Pool pool_{options_.max_connections};
  std::vector<std::unique_ptr<Worker>> workers_;
  std::thread acceptor_;

  std::mutex mutex_;
  std::condition_variable changed_;
  Meetings meetings_;                  ///< oldest first; guarded by mutex_, as the next ones
  unsigned turned_away_ = 0;           ///< of meetings_
  std::vector<Listener> added_;        ///< not taken up yet
  bool accepts_ = false;               ///< the door is open
  bool accepting_ = false;             ///< the accepting thread has seen that
  std::atomic<bool> closed_{false};    ///< nobody comes in any more; changes with mutex_ held
  std::atomic<bool> stopping_{false};  ///< likewise
};

}  // namespace rnbd::nbd
