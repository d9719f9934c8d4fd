// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/loop.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <span>
#include <system_error>
#include <utility>

namespace rnbd::vhost {
namespace {

/// Turns in a row that may wait for one descriptor only: a request and its answer are two. Posted
/// work waits for so many at most.
constexpr unsigned kMaxAlone = 16;
constexpr int kKickWait = 10;  ///< milliseconds
/// Of requests that end at once, until posted work has its turn.
constexpr unsigned kMostRounds = 16;

bool is_ready(const pollfd& descriptor) { return descriptor.revents != 0; }

}  // namespace

Loop::Loop(unsigned lane, LoopSurroundings& surroundings, std::shared_ptr<Meter> meter)
    : index_{lane},
      surroundings_{surroundings},
      meter_{std::move(meter)},
      kicked_{::epoll_create1(EPOLL_CLOEXEC)} {
  if (!kicked_) throw std::system_error{errno, std::generic_category(), "epoll_create1"};
  thread_ = std::thread{[this] { run(); }};
}

Loop::~Loop() {
  posted_.post([this] { ending_ = true; });
  thread_.join();
}

// ---- From the guest's thread --------------------------------------------------------------------

void Loop::perform(const std::function<void()>& function) {
  // The loop may still be inside the promise when this function has returned.
  const auto done = std::make_shared<std::promise<void>>();
  posted_.post([&function, done] {
    try {
      function();
    } catch (...) {
      return done->set_exception(std::current_exception());
    }
    done->set_value();
  });
  done->get_future().get();
}

Queue& Loop::queue(unsigned index) {
  return queues_.try_emplace(index, *static_cast<QueueHost*>(this), index).first->second;
}

/// Edges are what counts: a kick is never read, and so its descriptor may block or not.
bool Loop::set_kick(unsigned queue, rtrs::OwnedFd kick) {
  if (const auto old = kicks_.extract(queue)) {
    // Closing does not take it from the set, as the guest has it open, too.
    ::epoll_ctl(kicked_.get(), EPOLL_CTL_DEL, old.mapped().get(), nullptr);
  }
  if (!kick) return true;
  epoll_event event{.events = EPOLLIN | EPOLLET, .data = {.u32 = queue}};
  if (::epoll_ctl(kicked_.get(), EPOLL_CTL_ADD, kick.get(), &event) != 0) return false;
  kicks_.insert_or_assign(queue, std::move(kick));
  return true;
}

void Loop::tell_when_idle(std::function<bool(const Queue&)> chosen) {
  drained_ = false;
  draining_ = std::move(chosen);
}

void Loop::set_memory(std::shared_ptr<const GuestMemory> memory) {
  look_for_loss();  // nobody looks at the memory until now again
  for (auto& [index, queue] : queues_) queue.move_to(memory);
  memory_ = std::move(memory);
}

// ---- For its queues -----------------------------------------------------------------------------

void Loop::say(rtrs::LogLevel level, const std::string& line) {
  if (surroundings_.log) surroundings_.log(level, line);
}

void Loop::call(std::function<int()> call, Request& request) {
  surroundings_.calls.post(
      [call = std::move(call), &request] { request.error = call(); },
      [this, &request] { posted_.post([&request] { request.queue->on_call(request); }); });
}

// ---- The loop -----------------------------------------------------------------------------------

void Loop::run() {
  source_ = surroundings_.disk.lane_source();
  lane_ = source_->take_lane(index_);
  if (surroundings_.make_call) call_ = surroundings_.make_call();
  while (!ending_) {
    if (wait_alone()) {
      ++alone_;
    } else {
      alone_ = 0;
      flush();  // what was kept for a wait alone that could not be
      wait();
      serve_lane();
    }
    take_ended();
    serve_queues();
    if (!polled_.empty() && is_ready(polled_[0])) run_posted();
    tell();
  }
  lane_.reset();
}

/// A driver that sends one request at a time is waited for where its next step comes from.
Loop::Alone Loop::alone() const {
  if (alone_ >= kMaxAlone || ending_ || more_ || queues_.empty()) return Alone::no;
  const Queue* busy = nullptr;
  for (const auto& [index, queue] : queues_) {
    if (queue.is_idle()) continue;
    if (busy != nullptr) return Alone::no;
    busy = &queue;
  }
  if (busy == nullptr) return answered_ ? Alone::kick : Alone::no;
  return sent_ && busy->is_single() ? Alone::answer : Alone::no;
}

/// True if what it has waited for has come.
bool Loop::wait_alone() {
  const Alone what = alone();
  answered_ = sent_ = false;
  if (what == Alone::no) return false;
  for (pollfd& each : polled_) each.revents = 0;
  if (what == Alone::answer) return lane_->await(call_.get());
  want_kicks(true);
  if (!has_more()) take_kicks(kKickWait);
  want_kicks(false);
  return has_more();
}

void Loop::wait() {
  polled_.clear();
  polled_.push_back({posted_.descriptor(), POLLIN, 0});
  under_way_ = lane_->watch(polled_);
  polled_.push_back({kicked_.get(), POLLIN, 0});
  want_kicks(true);
  ::poll(polled_.data(), polled_.size(), more_ || has_more() ? 0 : -1);
  want_kicks(false);
  if (is_ready(polled_.back())) take_kicks(0);
}

bool Loop::has_more() const {
  return std::ranges::any_of(queues_, [](const auto& each) { return each.second.has_more(); });
}

void Loop::want_kicks(bool wanted) {
  for (auto& [index, queue] : queues_) queue.want_kicks(wanted);
}

/// The rings tell more than the kicks do: these only wake it up.
void Loop::take_kicks(int timeout_ms) {
  std::array<epoll_event, 16> events;
  ::epoll_wait(kicked_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
}

void Loop::flush() {
  if (std::exchange(started_, false)) lane_->flush();
}

void Loop::serve_lane() {
  const std::span lane{polled_.data() + 1, polled_.size() - 2};
  if (more_ || std::ranges::any_of(lane, is_ready)) more_ = lane_->progress(lane);
}

/// False: nothing has ended.
bool Loop::take_ended() {
  bool any = false;
  for (rtrs::LaneLoop::Job* job = lane_->collect(); job != nullptr;) {
    auto& request = *static_cast<Request*>(job->context);
    job = job->next;
    request.queue->on_lane(request);
    any = answered_ = true;
  }
  return any;
}

/// Ends make room for chains that are there, of each queue in turn: they share the memory. Some of
/// these end at once, which no descriptor reports, so it repeats. The next wait does not sleep
/// while there are more.
void Loop::serve_queues() {
  unsigned rounds = 0;
  do {
    auto each = queues_.upper_bound(served_first_);
    for (std::size_t count = 0; count < queues_.size(); ++count, ++each) {
      if (each == queues_.end()) each = queues_.begin();
      if (count == 0) served_first_ = each->first;
      Queue& queue = each->second;
      queue.publish();
      sent_ = queue.take() || sent_;
      queue.publish();
    }
    if (alone() != Alone::answer || !call_) flush();
  } while (take_ended() && ++rounds < kMostRounds);
  for (auto& [index, queue] : queues_) queue.publish();
}

void Loop::run_posted() {
  std::vector<std::function<void()>> posted;
  posted_.take(posted);
  for (const auto& function : posted) function();
  serve_queues();
}

void Loop::look_for_loss() {
  if (memory_ && memory_->is_lost() && !lost_.exchange(true)) surroundings_.changed();
}

void Loop::tell() {
  look_for_loss();
  if (!draining_) return;
  for (const auto& [index, queue] : queues_) {
    if (draining_(queue) && !queue.is_idle()) return;
  }
  draining_ = nullptr;
  drained_ = true;
  surroundings_.changed();
}

}  // namespace rnbd::vhost
