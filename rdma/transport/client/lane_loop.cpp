// SPDX-License-Identifier: BSD-3-Clause
#include <poll.h>

#include "rdma/transport/client/lane_driver.hpp"
#include "rdma/wire/ensure.hpp"

namespace rtrs {

/// The lead of a lane that never sleeps in it.
class LaneDriver::Loop final : public LaneLoop {
 public:
  explicit Loop(LaneDriver& driver) : driver_{driver} {
    const auto lock = driver_.take_quiet();
    RTRS_ENSURE(!driver_.looping());
    if (driver_.led()) driver_.kick();  // the present leader becomes a follower
    driver_.leader_ = Leader::loop;
  }

  ~Loop() override {
    const Lock lock{driver_.mutex_};
    RTRS_ENSURE(under_way_ == 0 && finished_head_ == nullptr);
    driver_.leader_ = Leader::nobody;
    driver_.hand_over();
  }

  void start(Job& job) override {
    job.loop = this;
    job.next = nullptr;
    job.operation->on_finish(&Loop::on_finish, &job);
    const Lock lock{driver_.mutex_};
    ++under_way_;
    job.operation->start(driver_.lane_);
    driver_.tell_if_busy();
  }

  void flush() override {
    const Lock lock{driver_.mutex_};
    driver_.lane_.flush();
  }

  std::size_t watch(std::vector<pollfd>& descriptors) override {
    const Lock lock{driver_.mutex_};
    descriptors.push_back({driver_.kick_.descriptor(), POLLIN, 0});
    // One entry per path, so that progress() knows which is which; poll() ignores -1.
    for (unsigned i = 0; i < driver_.path_limit_; ++i) {
      const Path& path = driver_.paths_[i];
      const short events = driver_.events_of(path);
      descriptors.push_back({events != 0 ? path.connection->descriptor() : -1, events, 0});
    }
    return under_way_;
  }

  bool progress(std::span<const pollfd> polled) override {
    Lock lock{driver_.mutex_};
    if (driver_.more_ != 0 && driver_.mutex_.wanted()) driver_.mutex_.let_others_in();
    const bool kicked = polled[0].revents != 0;
    if (kicked) driver_.kick_.clear();
    // A path that came between watch() and poll() kicked.
    if (kicked || driver_.more_ != 0) {
      driver_.drive();
    } else {
      for (unsigned i = 0; i + 1 < polled.size(); ++i) {
        const Path& path = driver_.paths_[i];
        if (polled[i + 1].revents != 0 && path.connection && !path.broken) driver_.drive(i);
      }
    }
    return driver_.more_ != 0;
  }

  bool await(OneCall* call) override {
    Lock lock{driver_.mutex_};
    if (under_way_ != 1 || driver_.more_ != 0) return false;
    if (!driver_.spin_as_leader() && under_way_ != 0) {
      if (!driver_.await_as_leader(lock, call)) return false;
      driver_.drive();
    }
    if (driver_.more_ != 0) driver_.kick();  // which a poll(2) need not tell
    return true;
  }

  Job* collect() override {
    const Lock lock{driver_.mutex_};
    Job* const finished = finished_head_;
    finished_head_ = finished_tail_ = nullptr;
    return finished;
  }

  bool cancel(Job& job) override {
    const Lock lock{driver_.mutex_};
    if (job.operation->finished()) return false;
    job.operation->cancel(driver_.lane_);
    --under_way_;
    return true;
  }

  unsigned permits() const override {
    const Lock lock{driver_.mutex_};
    return driver_.lane_.permits().count();
  }

 private:
  /// With the lane held, by any thread.
  static void on_finish(void* context) {
    auto& job = *static_cast<Job*>(context);
    auto& self = *static_cast<Loop*>(job.loop);
    --self.under_way_;
    (self.finished_tail_ != nullptr ? self.finished_tail_->next : self.finished_head_) = &job;
    self.finished_tail_ = &job;
    if (job.on_finish != nullptr) job.on_finish(job);
  }

  LaneDriver& driver_;
  std::size_t under_way_ = 0;
  Job* finished_head_ = nullptr;
  Job* finished_tail_ = nullptr;
};

std::unique_ptr<LaneLoop> LaneDriver::open_loop() { return std::make_unique<Loop>(*this); }

}  // namespace rtrs
