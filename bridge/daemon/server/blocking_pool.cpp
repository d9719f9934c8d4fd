// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/blocking_pool.hpp"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "bridge/nbd/call_pool.hpp"
#include "bridge/server/attempt.hpp"
#include "bridge/server/open_lines.hpp"
#include "rdma/transport/reactor.hpp"

namespace rnbd {

namespace {

/// For a few bytes that are written and made durable.
constexpr std::chrono::seconds kSuspicious{5};
/// Between two attempts, while there is no memory.
constexpr std::chrono::milliseconds kWant{10};

}  // namespace

struct BlockingPool::Impl {
  /// Threads come when they are needed, which is seldom. One is left when all the OPENs hang that
  /// may, and the look at the paths of exports, too.
  nbd::CallPool threads{OpenLines::kMostHung + 2};
  boost::asio::thread_pool recorder{1};
  boost::asio::thread_pool watch{1};  ///< over the recorder

  /// `work`, then `then` on the reactor. Users of its result have judged an exception already.
  static std::function<void()> both(rtrs::Reactor* reactor, std::function<void()> work,
                                    std::function<void()> then) {
    return [reactor, work = std::move(work), then = std::move(then)] {
      if (work) attempt(work);
      if (then) post(*reactor, then);
    };
  }

  /// A client waits for that, so it is tried until there is memory for it.
  static void post(rtrs::Reactor& reactor, const std::function<void()>& then) {
    while (attempt([&] { boost::asio::post(reactor.io(), then); }) != 0) {
      std::this_thread::sleep_for(kWant);
    }
  }

  /// The client that waits for the work only sees a server that does not answer. The watch needs no
  /// timer, and so no descriptors: there may be none. Without memory the work is not watched.
  void run_watched(const std::function<void()>& work, const std::function<void()>& complain) {
    std::optional<std::promise<void>> done;
    attempt([&] {
      done.emplace();
      boost::asio::post(watch, [over = done->get_future().share(), complain] {
        if (over.wait_for(kSuspicious) == std::future_status::timeout) attempt(complain);
      });
    });
    attempt(work);
    if (done) done->set_value();
  }
};

BlockingPool::BlockingPool(std::shared_ptr<rtrs::ClientLog> log)
    : log_{std::move(log)}, impl_{std::make_unique<Impl>()} {}

BlockingPool::~BlockingPool() { finish(); }

void BlockingPool::finish() {
  if (impl_ == nullptr) return;
  impl_->recorder.join();
  impl_->watch.join();
  impl_.get_deleter()(impl_.get());  // its last calls may start others
  impl_.release();
}

void BlockingPool::say(rtrs::LogLevel level, const std::string& peer,
                       const std::string& line) const {
  log_->say(level, peer, line, std::chrono::steady_clock::now());
}

void BlockingPool::later(rtrs::Reactor* reactor, Work work) const {
  boost::asio::post(reactor->io(), std::move(work));
}

std::shared_ptr<void> BlockingPool::after(rtrs::Reactor* reactor, rtrs::Duration time,
                                          Work work) const {
  auto timer = std::make_shared<boost::asio::steady_timer>(reactor->io(), time);
  timer->async_wait([work = std::move(work)](boost::system::error_code cancelled) {
    if (!cancelled) work();
  });
  return timer;
}

void BlockingPool::offload(rtrs::Reactor* reactor, Work work, Work then) const {
  impl_->threads.post(Impl::both(reactor, std::move(work), std::move(then)));
}

/// If one client's file hangs, other clients can still open exports.
void BlockingPool::record(rtrs::Reactor* reactor, Work work, Work then) const {
  const auto watched = [this, work = std::move(work)] {
    impl_->run_watched(work, [this] {
      say(rtrs::LogLevel::warning, "",
          "the state directory does not answer: no device is opened for writing until it does; "
          "see to its disk, or restart with another --state-directory");
    });
  };
  boost::asio::post(impl_->recorder, Impl::both(reactor, watched, std::move(then)));
}

}  // namespace rnbd
