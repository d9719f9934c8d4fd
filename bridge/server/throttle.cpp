// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/throttle.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

namespace rnbd {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;  // nanoseconds, as all times here
/// For unused room.
constexpr std::uint64_t kKept = kSecond / 10;
/// Between two looks at those that wait: shorter ones would keep the reactor busy, and after
/// longer ones a change of the limits would be noticed late.
constexpr std::uint64_t kShortestLook = kSecond / 1000, kLongestLook = kSecond / 10;
/// More than a request can carry; a read-ahead may ask for anything.
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;

std::uint64_t time_of_operation(const Limits& limits) {
  return limits.iops != 0 ? kSecond / limits.iops : 0;
}

std::uint64_t time_of_bytes(const Limits& limits, std::uint64_t bytes) {
  return limits.bandwidth != 0 ? std::min(bytes, kMostBytes) * kSecond / limits.bandwidth : 0;
}

void run_all(ThrottledRequest* first) {
  while (first != nullptr) {
    ThrottledRequest* const next = std::exchange(first->next, nullptr);
    first->go_on(*first);
    first = next;
  }
}

}  // namespace

void ThrottleFlow::append(ThrottledRequest& request) {
  request.next = nullptr;
  (first_ == nullptr ? first_ : last_->next) = &request;
  last_ = &request;
}

ThrottledRequest& ThrottleFlow::pop() {
  ThrottledRequest& request = *first_;
  first_ = std::exchange(request.next, nullptr);
  return request;
}

bool Throttle::admit(ThrottleFlow& flow, ThrottledRequest& request, const Services& services) {
  const std::lock_guard lock{mutex_};
  const std::uint64_t now = services.now();
  follow_setting(now);
  if (waiting_.empty() && may_go(now)) {
    serve(flow, request.bytes, now);
    return true;
  }
  if (flow.first_ == nullptr) waiting_.push_back(&flow);
  request.since = now;
  flow.append(request);
  ++reading_.waiting;
  if (!std::exchange(watched_, true)) watch(flow.reactor_, services, now);
  return false;
}

/// Requests that other limits let through are forgiven.
void Throttle::follow_setting(std::uint64_t now) {
  const Limits limits = setting_->get();
  if (limits == limits_) return;
  limits_ = limits;
  operations_paid_until_ = bytes_paid_until_ = now;
}

bool Throttle::may_go(std::uint64_t now) const {
  return std::max(operations_paid_until_, bytes_paid_until_) <= now + kKept || !limits_.any();
}

/// A flow's turn begins no earlier than the newest turn of others, so that an idle flow saves no
/// turns.
void Throttle::serve(ThrottleFlow& flow, std::uint64_t bytes, std::uint64_t now) {
  const std::uint64_t operation = time_of_operation(limits_), data = time_of_bytes(limits_, bytes);
  operations_paid_until_ = std::max(operations_paid_until_, now) + operation;
  bytes_paid_until_ = std::max(bytes_paid_until_, now) + data;
  own_time_ = std::max(own_time_, flow.served_);
  flow.served_ = own_time_ + std::max(operation, data);
}

/// The handler owns its timer, so that the timer ends with its reactor.
void Throttle::watch(rtrs::Reactor* reactor, const Services& services, std::uint64_t now) {
  const std::uint64_t due = std::max(operations_paid_until_, bytes_paid_until_);
  const std::uint64_t wait = due > now + kKept ? due - now - kKept : 0;
  const auto timer = std::make_shared<std::shared_ptr<void>>();
  *timer = services.after(reactor,
                          std::chrono::nanoseconds{std::clamp(wait, kShortestLook, kLongestLook)},
                          [self = shared_from_this(), reactor, &services, timer] {
                            const auto ended = std::exchange(*timer, nullptr);
                            self->on_time(reactor, services);
                          });
}

void Throttle::on_time(rtrs::Reactor* reactor, const Services& services) {
  std::vector<Batch> batches;
  {
    const std::lock_guard lock{mutex_};
    const std::uint64_t now = services.now();
    follow_setting(now);
    batches = take_those_whose_turn_it_is(now);
    watched_ = !waiting_.empty();
    if (watched_) watch(reactor, services, now);
  }
  ThrottledRequest* mine = nullptr;
  for (const Batch& batch : batches) {
    if (batch.reactor == reactor) {
      mine = batch.first;
    } else {
      services.later(batch.reactor, [first = batch.first] { run_all(first); });
    }
  }
  run_all(mine);
}

std::vector<Throttle::Batch> Throttle::take_those_whose_turn_it_is(std::uint64_t now) {
  std::vector<Batch> batches;
  while (!waiting_.empty() && may_go(now)) {
    const auto least = std::ranges::min_element(waiting_, {}, &ThrottleFlow::served_);
    ThrottleFlow& flow = **least;
    ThrottledRequest& request = flow.pop();
    if (flow.first_ == nullptr) waiting_.erase(least);
    serve(flow, request.bytes, now);
    --reading_.waiting;
    ++reading_.waited;
    reading_.nanoseconds += now - request.since;
    const auto batch = std::ranges::find(batches, flow.reactor_, &Batch::reactor);
    if (batch == batches.end()) {
      batches.push_back({flow.reactor_, &request, &request});
    } else {
      batch->last = batch->last->next = &request;
    }
  }
  return batches;
}

ThrottledRequest* Throttle::take_back(ThrottleFlow& flow,
                                      const std::function<bool(const ThrottledRequest&)>& which) {
  const std::lock_guard lock{mutex_};
  if (flow.first_ == nullptr) return nullptr;
  ThrottleFlow all{flow}, taken{flow.reactor_};
  flow.first_ = nullptr;
  while (all.first_ != nullptr) {
    ThrottledRequest& request = all.pop();
    if (!which(request)) {
      flow.append(request);
    } else {
      taken.append(request);
      --reading_.waiting;
    }
  }
  if (flow.first_ == nullptr) std::erase(waiting_, &flow);
  return taken.first_;
}

ThrottleReading Throttle::reading() const {
  const std::lock_guard lock{mutex_};
  return reading_;
}

std::shared_ptr<Throttle> in_force(std::shared_ptr<Throttle> throttle, const Services& services) {
  return services.clock != nullptr ? std::move(throttle) : nullptr;
}

}  // namespace rnbd
