// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/rbd_queue.hpp"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "bridge/backend/file_engine.hpp"
#include "rdma/owned_fd.hpp"
#include "rdma/transport/readiness.hpp"

namespace rnbd {
namespace {

class RbdQueue;

/// A request at work.
struct RbdIo : RbdOperation {
  RbdQueue* queue = nullptr;
  BackendRequest* request = nullptr;
  RbdIo* next_done = nullptr;
  std::int64_t result = 0;
  bool flushing = false;  ///< the write is done, and is to be durable
};
static_assert(sizeof(RbdIo) <= sizeof(BackendRequest::scratch));

/// Collects the extents of a request on a thread of the pool.
struct RbdMap : FileOperation {
  RbdQueue* queue = nullptr;
  BackendRequest* request = nullptr;
  std::uint64_t told = 0;  ///< bytes
};
static_assert(sizeof(RbdMap) <= sizeof(BackendRequest::scratch));

/// The requests that librbd's threads have completed: the reactor gives all of them back in one
/// turn.
class RbdCompletions final : public rtrs::Awaited, private rtrs::ReadinessHandler {
 public:
  RbdCompletions(RbdQueue& queue, rtrs::Reactor& reactor, rtrs::OwnedFd event)
      : queue_{queue},
        reactor_{reactor},
        event_{std::move(event)},
        readiness_{reactor.io(), reactor.hang_ups(), event_.get(), *this} {
    readiness_.wait_to_read();
  }
  ~RbdCompletions();

  /// On any thread.
  void add(RbdIo& io);
  void set_looked_for(bool looked_for) override;
  bool look() override;
  /// So many requests are under way.
  void await(unsigned requests) {
    reactor_.await(requests > 0 && requests <= kFew ? this : nullptr);
  }

 private:
  /// Of more than that one comes soon, and the others in the same turn.
  static constexpr unsigned kFew = 2;

  /// It is never read: each time that it is written to is an edge.
  void wake() { eventfd_write(event_.get(), 1); }
  void on_readable() override {
    readiness_.wait_to_read();
    look();
  }
  void on_writable() override {}

  RbdQueue& queue_;
  rtrs::Reactor& reactor_;
  const rtrs::OwnedFd event_;
  rtrs::Readiness readiness_;
  std::atomic<RbdIo*> newest_{nullptr};
  std::atomic<bool> looked_for_{false};
  std::atomic<unsigned> adding_{0};  ///< threads that still use this object
};

class RbdQueue final : public BackendQueue {
 public:
  RbdQueue(std::shared_ptr<RbdShared> shared, rtrs::Reactor& reactor, rtrs::OwnedFd event)
      : shared_{std::move(shared)},
        threads_{make_thread_engine(reactor)},
        completions_{*this, reactor, std::move(event)} {}

  void submit(BackendRequest& request) override;
  bool broken() const override { return shared_->is_fenced(); }

 private:
  friend class RbdCompletions;
  std::uint64_t inside(const BackendRequest& request) const {
    const std::uint64_t size = shared_->size.load(std::memory_order_relaxed);
    return request.offset >= size ? 0 : std::min(request.length, size - request.offset);
  }
  int answer_at_once(const BackendRequest& request) const;
  void start(BackendRequest& request, RbdOperation::Kind kind);
  void map(BackendRequest& request);
  static std::int64_t look(FileOperation& operation);
  static int on_extent(std::uint64_t offset, std::size_t length, int exists, void* context);
  static bool append(RbdMap& map, std::uint64_t length, bool hole);
  static void on_mapped(FileOperation& operation, std::int64_t result);
  static void on_completed(RbdOperation& operation, std::int64_t result);
  void finish(RbdIo& io);
  int error_of(std::int64_t result);

  std::shared_ptr<RbdShared> shared_;
  std::unique_ptr<FileEngine> threads_;
  RbdCompletions completions_;
  unsigned under_way_ = 0;  ///< requests at librbd
};

int RbdQueue::answer_at_once(const BackendRequest& request) const {
  if (shared_->is_fenced()) return EIO;
  const bool change = request.operation == BackendOperation::write ||
                      request.operation == BackendOperation::discard ||
                      request.operation == BackendOperation::write_zeroes;
  if (change && shared_->info.read_only) return EROFS;
  if (request.operation == BackendOperation::cache) return 0;
  if (request.operation == BackendOperation::write_zeroes && request.fast && request.no_unmap) {
    return EOPNOTSUPP;
  }
  return change && inside(request) == 0 ? 0 : -1;
}

void RbdQueue::submit(BackendRequest& request) {
  const int early = answer_at_once(request);
  if (early >= 0) return request.done(request, early);
  switch (request.operation) {
    case BackendOperation::read: {
      const std::uint64_t length = inside(request);
      std::memset(request.data + length, 0, request.length - length);
      return length == 0 ? request.done(request, 0) : start(request, RbdOperation::Kind::read);
    }
    case BackendOperation::write:
      return start(request, RbdOperation::Kind::write);
    case BackendOperation::flush:
      return start(request, RbdOperation::Kind::flush);
    case BackendOperation::discard:
      return start(request, RbdOperation::Kind::discard);
    case BackendOperation::write_zeroes:
      return start(request, request.no_unmap ? RbdOperation::Kind::write_thick_zeroes
                                             : RbdOperation::Kind::write_zeroes);
    case BackendOperation::extents:
      return map(request);
    case BackendOperation::cache:
      break;
  }
  request.done(request, 0);
}

void RbdQueue::start(BackendRequest& request, RbdOperation::Kind kind) {
  auto& io = *new (request.scratch) RbdIo;
  io.kind = kind;
  io.offset = request.offset;
  io.length = inside(request);
  io.data = request.data;
  io.completed = on_completed;
  io.queue = this;
  io.request = &request;
  completions_.await(++under_way_);
  shared_->module->start(shared_->image, io);
}

/// On a thread of librbd's, or inside start().
void RbdQueue::on_completed(RbdOperation& operation, std::int64_t result) {
  auto& io = static_cast<RbdIo&>(operation);
  io.result = result;
  io.queue->completions_.add(io);
}

/// The one that finds the list empty has the reactor look. The request may be over, and the queue
/// be closed, as soon as the list has it.
void RbdCompletions::add(RbdIo& io) {
  ++adding_;
  RbdIo* head = newest_.load();
  do {
    io.next_done = head;
  } while (!newest_.compare_exchange_weak(head, &io));
  if (head == nullptr && !looked_for_) wake();
  --adding_;
}

void RbdCompletions::set_looked_for(bool looked_for) {
  looked_for_ = looked_for;
  if (!looked_for && newest_.load() != nullptr) wake();
}

bool RbdCompletions::look() {
  RbdIo* io = newest_.exchange(nullptr);
  RbdIo* oldest = nullptr;
  while (io != nullptr) oldest = std::exchange(io, std::exchange(io->next_done, oldest));
  const bool found = oldest != nullptr;
  while (oldest != nullptr) {
    RbdIo& next = *oldest;
    oldest = next.next_done;
    queue_.finish(next);
  }
  return found;
}

/// All requests have ended.
RbdCompletions::~RbdCompletions() {
  while (adding_ != 0) std::this_thread::yield();
}

void RbdQueue::finish(RbdIo& io) {
  if (io.result >= 0 && io.request->fua && !io.flushing) {
    io.flushing = true;
    io.kind = RbdOperation::Kind::flush;
    return shared_->module->start(shared_->image, io);
  }
  completions_.await(--under_way_);
  BackendRequest& request = *io.request;
  request.done(request, error_of(io.result));
}

/// An image that has shrunk gives EINVAL, which clients would take for a mistake of theirs.
int RbdQueue::error_of(std::int64_t result) {
  if (result >= 0) return 0;
  if (result == -ESHUTDOWN) shared_->is_fenced();
  return result == -ESHUTDOWN || result == -EINVAL ? EIO : static_cast<int>(-result);
}

// ---- Holes --------------------------------------------------------------------------------------

void RbdQueue::map(BackendRequest& request) {
  auto& map = *new (request.scratch) RbdMap;
  map.kind = FileOperation::Kind::call;
  map.call = look;
  map.done = on_mapped;
  map.queue = this;
  map.request = &request;
  threads_->start(map);
}

std::int64_t RbdQueue::look(FileOperation& operation) {
  auto& map = static_cast<RbdMap&>(operation);
  RbdShared& shared = *map.queue->shared_;
  const std::uint64_t length = map.queue->inside(*map.request);
  const int error = length == 0 ? 0
                                : shared.module->extents(shared.image, map.request->offset, length,
                                                         on_extent, &map);
  if (error < 0 && error != -ECANCELED) return error;
  if (error == 0) append(map, map.request->length - map.told, /*hole=*/true);
  return 0;
}

/// The gap between two runs is a hole.
int RbdQueue::on_extent(std::uint64_t offset, std::size_t length, int exists, void* context) {
  auto& map = *static_cast<RbdMap*>(context);
  const std::uint64_t begin = std::max(offset, map.request->offset) - map.request->offset;
  const std::uint64_t end =
      std::min<std::uint64_t>(offset + length - map.request->offset, map.request->length);
  if (begin > map.told && !append(map, begin - map.told, /*hole=*/true)) return -ECANCELED;
  if (end <= map.told) return 0;
  return append(map, end - map.told, exists == 0) ? 0 : -ECANCELED;
}

/// False: there is no room for another one.
bool RbdQueue::append(RbdMap& map, std::uint64_t length, bool hole) {
  auto& extents = *map.request->extents;
  if (length == 0) return true;
  if (map.told > 0 && extents.back().hole == hole) {
    extents.back().length += length;
  } else if (map.flags >= 0 && static_cast<std::size_t>(map.flags) < map.request->max_extents) {
    ++map.flags;
    extents.push_back({length, hole, hole});
  } else {
    return false;
  }
  map.told += length;
  return true;
}

void RbdQueue::on_mapped(FileOperation& operation, std::int64_t result) {
  auto& map = static_cast<RbdMap&>(operation);
  BackendRequest& request = *map.request;
  request.done(request, map.queue->error_of(result));
}

}  // namespace

std::unique_ptr<BackendQueue> open_rbd_queue(std::shared_ptr<RbdShared> shared,
                                             rtrs::Reactor& reactor) {
  rtrs::OwnedFd event{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!event) return nullptr;
  try {
    return std::make_unique<RbdQueue>(std::move(shared), reactor, std::move(event));
  } catch (const std::system_error&) {
    return nullptr;  // it cannot be watched
  }
}

}  // namespace rnbd
