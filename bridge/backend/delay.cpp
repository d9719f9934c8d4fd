// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/delay.hpp"

#include <unistd.h>

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <cerrno>

#include "bridge/backend/chance.hpp"
#include "bridge/backend/specification.hpp"
#include "bridge/backend/wrapper.hpp"
#include "rdma/transport/reactor.hpp"

namespace rnbd {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

struct DelayOptions {
  std::uint64_t seed = 1;
  nanoseconds read{0};  ///< extents and read-ahead, too
  nanoseconds write{0};
  nanoseconds flush{0};
  nanoseconds discard{0};
  nanoseconds zero{0};
  nanoseconds jitter{0};  ///< added to all that are delayed, evenly between 0 and this
  std::string hold_file;
  nanoseconds hold{std::chrono::seconds{5}};
};

/// The delay of each request; shared by all queues.
class Pace {
 public:
  explicit Pace(DelayOptions options) : options_{std::move(options)}, chance_{options_.seed} {}

  nanoseconds of(const BackendRequest& request) {
    nanoseconds delay = base(request.operation);
    if (delay.count() > 0 && options_.jitter.count() > 0) {
      delay += nanoseconds{
          static_cast<std::int64_t>(chance_.draw() * static_cast<double>(options_.jitter.count()))};
    }
    // Removing the file and taking it are one step, so exactly one write is held.
    if (request.operation == BackendOperation::write && !options_.hold_file.empty() &&
        unlink(options_.hold_file.c_str()) == 0) {
      delay += options_.hold;
    }
    return delay;
  }

 private:
  nanoseconds base(BackendOperation operation) const {
    switch (operation) {
      case BackendOperation::write:
        return options_.write;
      case BackendOperation::flush:
        return options_.flush;
      case BackendOperation::discard:
        return options_.discard;
      case BackendOperation::write_zeroes:
        return options_.zero;
      case BackendOperation::read:
      case BackendOperation::extents:
      case BackendOperation::cache:
        return options_.read;
    }
    return {};
  }

  const DelayOptions options_;
  Chance chance_;
};

class DelayQueue final : public BackendQueue {
 public:
  DelayQueue(Pace& pace, std::unique_ptr<BackendQueue> inner, rtrs::Reactor& reactor)
      : pace_{pace},
        inner_{std::move(inner)},
        timer_{reactor.io()},
        waiter_{std::make_shared<DelayQueue*>(this)} {}
  ~DelayQueue() override { *waiter_ = nullptr; }

  void submit(BackendRequest& request) override {
    const nanoseconds delay = pace_.of(request);
    if (delay.count() == 0) return inner_->submit(request);
    const Clock::time_point due = Clock::now() + delay;
    const bool earliest = waiting_.empty() || due < waiting_.front().due;
    waiting_.push_back({due, next_number_++, &request});
    std::push_heap(waiting_.begin(), waiting_.end());
    if (earliest) arm();
  }

  bool broken() const override { return inner_->broken(); }

 private:
  struct Waiting {
    Clock::time_point due;
    std::uint64_t number;  ///< equals leave in the order they came
    BackendRequest* request;
    /// Puts the request that is due first in front of the heap.
    bool operator<(const Waiting& other) const {
      return due != other.due ? due > other.due : number > other.number;
    }
  };

  void arm() {
    timer_.expires_at(waiting_.front().due);
    timer_.async_wait([waiter = waiter_](const boost::system::error_code& error) {
      DelayQueue* const queue = *waiter;
      if (queue != nullptr && !error) queue->on_timer();
    });
  }

  void on_timer() {
    const Clock::time_point now = Clock::now();
    while (!waiting_.empty() && waiting_.front().due <= now) {
      std::pop_heap(waiting_.begin(), waiting_.end());
      BackendRequest& request = *waiting_.back().request;
      waiting_.pop_back();
      inner_->submit(request);
    }
    if (!waiting_.empty()) arm();
  }

  Pace& pace_;
  std::unique_ptr<BackendQueue> inner_;
  boost::asio::steady_timer timer_;
  /// Handlers that outlive the queue find null here.
  std::shared_ptr<DelayQueue*> waiter_;
  std::vector<Waiting> waiting_;
  std::uint64_t next_number_ = 0;
};

class DelayBackend final : public WrapperBackend {
 public:
  DelayBackend(DelayOptions options, std::unique_ptr<Backend> inner)
      : WrapperBackend{std::move(inner)}, pace_{std::move(options)} {}

 private:
  std::unique_ptr<BackendQueue> wrap(std::unique_ptr<BackendQueue> queue,
                                     rtrs::Reactor* reactor) override {
    return std::make_unique<DelayQueue>(pace_, std::move(queue), *reactor);
  }

  Pace pace_;
};

/// Applies one option. Errors: the mistake in it.
tl::expected<void, Failure> apply(DelayOptions& options, const KeyValue& option) {
  const auto set = [](auto& target, auto value) -> tl::expected<void, Failure> {
    if (!value) return tl::unexpected(value.error());
    target = *value;
    return {};
  };
  if (option.key == "seed") return set(options.seed, parse_number(option.value));
  if (option.key == "hold-file") {
    options.hold_file = option.value;
    return {};
  }
  const std::pair<std::string_view, nanoseconds*> durations[] = {
      {"read", &options.read},       {"write", &options.write}, {"flush", &options.flush},
      {"discard", &options.discard}, {"zero", &options.zero},   {"jitter", &options.jitter},
      {"hold", &options.hold},
  };
  for (const auto& [name, target] : durations) {
    if (option.key == name) return set(*target, parse_short_duration(option.value));
  }
  return tl::unexpected(
      Failure{EINVAL,
              "unknown option; there are read, write, flush, discard, zero, jitter and "
              "hold, each with a duration like 2ms, hold-file=PATH and seed=N"});
}

}  // namespace

tl::expected<std::unique_ptr<Backend>, Failure> open_delay(const std::string& specification,
                                                           const BackendOptions& options) {
  const std::string whole = "delay:" + specification;
  const auto parsed = parse_wrapper(specification);
  if (!parsed) return bad_specification(EINVAL, whole, parsed.error().text);
  DelayOptions delay;
  for (const KeyValue& option : parsed->options) {
    const auto applied = apply(delay, option);
    if (!applied) {
      return bad_specification(EINVAL, whole, option.key + ": " + applied.error().text);
    }
  }
  auto inner = open_backend(parsed->inner, options);
  if (!inner) return inner;
  return std::make_unique<DelayBackend>(std::move(delay), std::move(*inner));
}

}  // namespace rnbd
