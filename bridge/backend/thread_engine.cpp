// SPDX-License-Identifier: BSD-3-Clause
// The file engine where io_uring is not to be had, or not the better way: blocking calls on a pool
// of threads.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "bridge/backend/file_engine.hpp"
#include "rdma/transport/reactor.hpp"

namespace rnbd {

namespace {

/// As many as nbdkit has per connection; they mostly sleep in the disk's queue.
constexpr unsigned kThreads = 16;
/// Of these, left to operations that have no other way than a thread.
constexpr unsigned kReserve = 4;

std::int64_t perform(FileOperation& operation) {
  const auto offset = static_cast<off_t>(operation.offset);
  const auto length = static_cast<off_t>(operation.length);
  iovec vector{operation.memory, operation.length};
  std::int64_t result = 0;
  switch (operation.kind) {
    case FileOperation::Kind::read:
      result = preadv2(operation.fd, &vector, 1, offset, operation.flags);
      break;
    case FileOperation::Kind::write:
      result = pwritev2(operation.fd, &vector, 1, offset, operation.flags);
      break;
    case FileOperation::Kind::sync:
      result = fdatasync(operation.fd);
      break;
    case FileOperation::Kind::allocate:
      result = fallocate(operation.fd, operation.flags, offset, length);
      break;
    case FileOperation::Kind::advise:
      return -posix_fadvise(operation.fd, offset, length, operation.flags);
    case FileOperation::Kind::call:
      return operation.call(operation);
  }
  return result < 0 ? -errno : result;
}

struct Work {
  FileOperation& operation;
  boost::asio::io_context& reactor;  ///< where it is told that it is done
};

/// Starts as many threads as the system allows, perhaps none: a server must not end because of a
/// limit of tasks.
class Pool {
 public:
  Pool() {
    try {
      for (unsigned i = 0; i < kThreads; ++i) threads_.emplace_back([this] { io_.run(); });
    } catch (const std::exception&) {
      // Fewer will do.
    }
  }
  ~Pool() {
    guard_.reset();
    for (std::thread& thread : threads_) thread.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  /// Without threads the caller does the work itself, and waits.
  void run(Work work) {
    busy_.fetch_add(1, std::memory_order_relaxed);
    threads_.empty() ? finish(work) : post(work);
  }
  /// Begins at once, or not at all: false when no thread is idle but the reserve.
  bool run_if_idle(Work work) {
    if (busy_.fetch_add(1, std::memory_order_relaxed) + kReserve >= threads_.size()) {
      busy_.fetch_sub(1, std::memory_order_relaxed);
      return false;
    }
    post(work);
    return true;
  }

 private:
  void post(Work work) {
    boost::asio::post(io_, [this, work] { finish(work); });
  }
  void finish(Work work) {
    std::int64_t result = 0;
    do {
      result = perform(work.operation);
    } while (result == -EINTR);
    busy_.fetch_sub(1, std::memory_order_relaxed);
    boost::asio::post(work.reactor,
                      [&operation = work.operation, result] { operation.done(operation, result); });
  }

  std::atomic<std::size_t> busy_{0};  ///< works that run or wait
  boost::asio::io_context io_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_{
      io_.get_executor()};
  std::vector<std::thread> threads_;
};

/// One pool for the process while any export uses it. Exports come and go by the hundred; threads
/// should not.
std::shared_ptr<Pool> shared_pool() {
  static std::mutex mutex;
  static std::weak_ptr<Pool> pool;
  const std::lock_guard lock{mutex};
  auto existing = pool.lock();
  if (existing == nullptr) {
    existing = std::make_shared<Pool>();
    pool = existing;
  }
  return existing;
}

class ThreadEngine final : public FileEngine {
 public:
  explicit ThreadEngine(rtrs::Reactor& reactor) : reactor_{reactor}, pool_{shared_pool()} {}

  void start(FileOperation& operation) override { pool_->run({operation, reactor_.io()}); }
  bool start_on_idle_thread(FileOperation& operation) override {
    return pool_->run_if_idle({operation, reactor_.io()});
  }

 private:
  rtrs::Reactor& reactor_;
  std::shared_ptr<Pool> pool_;
};

}  // namespace

std::unique_ptr<FileEngine> make_thread_engine(rtrs::Reactor& reactor) {
  return std::make_unique<ThreadEngine>(reactor);
}

}  // namespace rnbd
