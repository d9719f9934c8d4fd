// SPDX-License-Identifier: BSD-3-Clause
// A queue pair with a pulse: all that drivers need of a transport beside posting.
#pragma once

#include <cerrno>
#include <cstdint>
#include <string>
#include <tl/expected.hpp>

#include "rdma/core/identity.hpp"
#include "rdma/core/queue_pair.hpp"
#include "rdma/core/regions.hpp"
#include "rdma/core/time.hpp"
#include "rdma/failure.hpp"

namespace rtrs {

class OneCall;

/// The transport's state shared by all connections of one path (a protection domain); null at
/// first.
class PathContext {
 public:
  virtual ~PathContext() = default;
  /// The memory that the peer may use by itself; null: it may use none.
  virtual Regions* regions() { return nullptr; }
};

/// One connection that some thread drives: waits for its descriptor, then calls progress().
///
/// Threads: one at a time; the destructor closes it.
class Connection : public QueuePair {
 public:
  enum class Status {
    drained,  ///< nothing more to read at the moment
    more,     ///< the budget is used up, call again
    starves,  ///< the handler has no room for what comes next: call again when it has
    closed,   ///< the peer closed in an orderly way
    broken,   ///< an error; failure() tells which
  };

  /// Reads everything available, without blocking, and calls the handler. Also sends everything
  /// still queued.
  ///
  /// Errors: broken after an error of the system, a damaged or malformed frame, or the handler's
  /// complaint.
  virtual Status progress(QueuePairHandler& handler) = 0;

  /// The same for a driver without an event from the descriptor: arrivals are read; the end of the
  /// connection and other events may be left for progress().
  virtual Status glance(QueuePairHandler& handler) { return progress(handler); }

  /// Readies `count` windows of at most `bytes` each for stage() and expose(), before the first.
  ///
  /// Errors: ENOMEM when the memory cannot be had or locked.
  virtual tl::expected<void, Failure> reserve_windows(unsigned /*count*/, std::uint32_t /*bytes*/) {
    return {};
  }
  /// Makes memory known to the transport, so that it can be exposed and sent from where it is. It
  /// must stay until the connection is closed or has forgotten it. The cost is shared by the
  /// connections of a path.
  ///
  /// Errors: ENOMEM when it cannot be locked.
  virtual tl::expected<void, Failure> register_memory(MutableBytes /*memory*/) { return {}; }
  /// Nothing that was exposed or staged may lie in it.
  virtual void forget_memory(MutableBytes /*memory*/) {}

  /// Readies a key of its own for each of `count` windows of the path, so that they can be revoked.
  ///
  /// Errors: ENOTSUP when the transport or the device cannot, ENOMEM.
  virtual tl::expected<void, Failure> reserve_keys(unsigned /*count*/) {
    return tl::unexpected(Failure{ENOTSUP, "always-invalidate needs RDMA"});
  }

  /// Told after a post that found nothing queued: somebody should flush soon. For drivers that send
  /// in batches.
  void set_wakeup(void (*wakeup)(void*), void* context) {
    wakeup_ = wakeup;
    wakeup_context_ = context;
  }

  /// Becomes readable when progress() has something to do.
  virtual int descriptor() const = 0;
  /// True: await(), and then end_await(), may be called now instead of waiting for the descriptor.
  /// Frames that wait to be sent leave before it, or with it by `call`. `shared`: others may use
  /// the connection meanwhile.
  virtual bool begin_await(OneCall* /*call*/, bool /*shared*/) { return false; }
  /// Waits some milliseconds at most for something to arrive, and keeps it for progress(). A system
  /// call less than waiting for the descriptor and receiving then. False: nothing has arrived.
  ///
  /// Threads: meanwhile others may post, flush, expose and withdraw; not progress() or close().
  /// Frames that these flush may leave in end_await() only.
  virtual bool await() { return false; }
  virtual void end_await() {}
  /// Something queued waits for the descriptor to become writable.
  virtual bool wants_to_write() const = 0;
  /// For a transport that discards data under way in close(): waits at most until `until` for their
  /// arrival. To be followed by close(): the handler gets nothing that arrives meanwhile. False:
  /// they have not arrived.
  virtual bool finish(Instant /*until*/) { return true; }
  /// Ends the connection. Afterwards no memory is read or written by the transport.
  virtual void close() = 0;
  virtual const std::string& failure() const = 0;
  /// The identity of the peer. Null: the transport cannot tell.
  virtual const Identity* peer() const { return nullptr; }
  /// Traffic counts, for the log of its end; "" when nobody counted.
  virtual std::string statistics() const { return {}; }

 protected:
  /// Every post that found nothing queued calls this.
  void wake() const {
    if (wakeup_ != nullptr) wakeup_(wakeup_context_);
  }

 private:
  void (*wakeup_)(void*) = nullptr;
  void* wakeup_context_ = nullptr;
};

}  // namespace rtrs
