#include "bridge/daemon/blocking_pool.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "rdma/transport/reactor.hpp"

namespace rnbd {

struct BlockingPool::Impl {
  boost::asio::thread_pool threads{2};
  boost::asio::thread_pool recorder{1};

  /// Runs `work` in a pool, then `then` on the reactor.
  static auto in(boost::asio::thread_pool& pool) {
    return [&pool](rtrs::Reactor* reactor, std::function<void()> work, std::function<void()> then) {
      boost::asio::post(pool, [reactor, work = std::move(work), then = std::move(then)]() mutable {
        if (work) work();
        if (then) boost::asio::post(reactor->io(), std::move(then));
      });
    };
  }
};

BlockingPool::BlockingPool() : impl_{std::make_unique<Impl>()} {}

BlockingPool::~BlockingPool() {
  impl_->threads.join();
  impl_->recorder.join();
}

Surroundings BlockingPool::surroundings(std::shared_ptr<rtrs::ClientLog> log) {
  Surroundings surroundings;
  surroundings.log = [log = std::move(log)](rtrs::LogLevel level, const std::string& peer,
                                            const std::string& line) {
    log->say(level, peer, line, std::chrono::steady_clock::now());
  };
  surroundings.later = [](rtrs::Reactor* reactor, std::function<void()> work) {
    boost::asio::post(reactor->io(), std::move(work));
  };
  surroundings.offload = Impl::in(impl_->threads);
  // What hangs in a client's file keeps nobody from opening an export.
  surroundings.record = Impl::in(impl_->recorder);
  return surroundings;
}

}  // namespace rnbd
