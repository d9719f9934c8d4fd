// SPDX-License-Identifier: BSD-3-Clause
// The file engine where io_uring is not to be had, or not the better way: blocking calls on a pool
// of threads.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

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
  template <class Work>
  void run(Work work) {
    if (threads_.empty()) return work();
    boost::asio::post(io_, std::move(work));
  }

 private:
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

class ThreadEngine final : public FileEngine {
 public:
  explicit ThreadEngine(rtrs::Reactor& reactor) : reactor_{reactor}, pool_{shared_pool()} {}

  void start(FileOperation& operation) override { start_on_thread(operation); }

  void start_on_thread(FileOperation& operation) override {
    pool_->run([&operation, &io = reactor_.io()] {
      std::int64_t result = 0;
      do {
        result = perform(operation);
      } while (result == -EINTR);
      boost::asio::post(io, [&operation, result] { operation.done(operation, result); });
    });
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
