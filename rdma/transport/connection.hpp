// A queue pair with a pulse: what drivers need of a transport beside posting.
#pragma once

#include <string>

#include "rdma/core/queue_pair.hpp"

namespace rtrs {

/// One connection that some thread drives: waits for its descriptor, then calls progress().
///
/// Threads: one at a time; the destructor closes it.
class Connection : public QueuePair {
 public:
  enum class Status {
    drained,  ///< nothing more to read at the moment
    more,     ///< the budget is used up, call again
    closed,   ///< the peer closed in an orderly way
    broken,   ///< an error; failure() tells which
  };

  /// Reads what is there, without blocking, and tells the handler. Also sends what is still queued.
  ///
  /// Errors: broken after an error of the system, a damaged or malformed frame, or the handler's
  /// complaint.
  virtual Status progress(QueuePairHandler& handler) = 0;

  /// Told after a post that found nothing queued: somebody should flush soon. For drivers that send
  /// in batches.
  virtual void set_wakeup(void (*wakeup)(void*), void* context) = 0;

  /// Becomes readable when progress() has something to do.
  virtual int descriptor() const = 0;
  /// Something queued waits for the descriptor to become writable.
  virtual bool wants_to_write() const = 0;
  /// Ends the connection. Afterwards no memory is read or written by the transport.
  virtual void close() = 0;
  virtual const std::string& failure() const = 0;
};

}  // namespace rtrs
