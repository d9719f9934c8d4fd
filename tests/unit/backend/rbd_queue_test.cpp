// SPDX-License-Identifier: BSD-3-Clause
// Requests that threads of others complete, as librbd's do.
#include "bridge/backend/rbd_queue.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace rnbd {

/// In librbd's place: threads that end requests, and now and then the caller does.
struct RbdImage {
  RbdImage() {
    for (int i = 0; i < 3; ++i) threads.emplace_back([this] { work(); });
  }
  ~RbdImage() {
    {
      const std::lock_guard lock{mutex};
      ending = true;
    }
    condition.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void start(RbdOperation& operation) {
    ++started[static_cast<std::size_t>(operation.kind)];
    if (++all % 16 == 0) return end(operation);
    {
      const std::lock_guard lock{mutex};
      waiting.push_back(&operation);
    }
    condition.notify_one();
  }

  void work() {
    std::unique_lock lock{mutex};
    for (;;) {
      condition.wait(lock, [this] { return ending || !waiting.empty(); });
      if (waiting.empty()) return;
      RbdOperation& operation = *waiting.front();
      waiting.pop_front();
      lock.unlock();
      end(operation);
      lock.lock();
    }
  }

  void end(RbdOperation& operation) const {
    if (operation.kind == RbdOperation::Kind::read) {
      std::memset(operation.data, 'r', operation.length);
    }
    operation.completed(operation, result);
  }

  std::mutex mutex;
  std::condition_variable condition;
  std::deque<RbdOperation*> waiting;
  bool ending = false;
  std::atomic<std::int64_t> result{0};
  std::array<unsigned, 6> started{};
  unsigned all = 0;
  std::vector<std::thread> threads;
};

namespace rbd_queue_test {

constexpr std::size_t kBlock = 512;

constexpr RbdModule module() {
  RbdModule result{};
  result.close = [](RbdImage* image) { delete image; };
  result.start = [](RbdImage* image, RbdOperation& operation) { image->start(operation); };
  result.fenced = [](RbdImage*) { return false; };
  return result;
}
constexpr RbdModule kModule = module();

std::shared_ptr<RbdShared> open_image() {
  auto shared = std::make_shared<RbdShared>();
  shared->name = "rbd:test/image";
  shared->module = &kModule;
  shared->image = new RbdImage;
  shared->size = 1 << 20;
  return shared;
}

/// Requests on a reactor of its own, until there were enough.
class Load {
 public:
  struct Request : BackendRequest {
    std::array<std::byte, kBlock> block{};
    int error = -1;
  };
  /// A request has ended; submits another one, or stops the reactor.
  using Next = std::function<void(Request&)>;

  explicit Load(unsigned depth) : requests(depth) { reopen(); }

  void reopen() { queue = open_rbd_queue(shared, reactor); }
  void submit(Request& request, BackendOperation operation = BackendOperation::read) {
    request.operation = operation;
    request.length = kBlock;
    request.data = request.block.data();
    request.done = on_done;
    request.context = this;
    request.block.fill(std::byte{0});
    queue->submit(request);
  }
  void run(Next then) {
    next = std::move(then);
    boost::asio::post(reactor.io(), [this] {
      for (Request& request : requests) submit(request);
    });
    reactor.run();
  }
  RbdImage& image() { return *shared->image; }

  std::shared_ptr<RbdShared> shared = open_image();
  rtrs::Reactor reactor{0};
  std::vector<Request> requests;
  /// Of another reactor, in a way: it keeps what queues share.
  std::unique_ptr<BackendQueue> other = open_rbd_queue(shared, reactor);
  std::unique_ptr<BackendQueue> queue;
  unsigned ended = 0;
  bool right = true;  ///< each on the reactor's thread, and with its data

 private:
  static void on_done(BackendRequest& base, int error) {
    auto& request = static_cast<Request&>(base);
    auto& self = *static_cast<Load*>(request.context);
    request.error = error;
    ++self.ended;
    self.right = self.right && std::this_thread::get_id() == self.thread_ &&
                 (request.operation != BackendOperation::read || error != 0 ||
                  std::ranges::count(request.block, std::byte{'r'}) == kBlock);
    self.next(request);
  }

  std::thread::id thread_ = std::this_thread::get_id();
  Next next;
};

TEST_CASE("rbd: what other threads have completed is given back, whether it is looked for or not") {
  for (const unsigned depth : {1U, 2U, 3U, 32U}) {
    CAPTURE(depth);
    constexpr unsigned kAll = 3000;
    Load load{depth};
    unsigned begun = depth;
    load.run([&](Load::Request& request) {
      if (begun < kAll) {
        ++begun;
        load.submit(request);
      } else if (load.ended == kAll) {
        load.reactor.stop();
      }
    });
    CHECK(load.right);
    CHECK(load.ended == kAll);
  }
}

TEST_CASE("rbd: a queue may be closed as soon as its last request has ended") {
  Load load{1};
  load.run([&](Load::Request& request) {
    if (load.ended == 1000) return load.reactor.stop();
    boost::asio::post(load.reactor.io(), [&] {
      load.queue.reset();
      load.reopen();
      load.submit(request);
    });
  });
  CHECK(load.right);
}

TEST_CASE("rbd: a durable write is flushed before it is answered") {
  Load load{1};
  load.run([&](Load::Request& request) {
    if (load.ended == 2) return load.reactor.stop();
    request.fua = true;
    load.submit(request, BackendOperation::write);
  });
  using Kind = RbdOperation::Kind;
  CHECK(load.image().started[static_cast<std::size_t>(Kind::write)] == 1);
  CHECK(load.image().started[static_cast<std::size_t>(Kind::flush)] == 1);
}

TEST_CASE("rbd: what the cluster says of a server that it has fenced off is EIO for clients") {
  for (const int error : {ESHUTDOWN, EINVAL, EIO, ENOSPC}) {
    Load load{1};
    load.image().result = -error;
    load.run([&](Load::Request&) { load.reactor.stop(); });
    CHECK(load.requests[0].error == (error == ENOSPC ? ENOSPC : EIO));
  }
}

}  // namespace rbd_queue_test
}  // namespace rnbd
