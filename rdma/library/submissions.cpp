// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/submissions.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <system_error>

namespace rtrs::library {
namespace {

thread_local bool is_its_thread = false;

int make_eventfd() {
  const int descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (descriptor < 0) throw std::system_error{errno, std::generic_category(), "eventfd"};
  return descriptor;
}

}  // namespace

struct Submissions::Job {
  LaneLoop::Job job;
  OwnedAnswer owned;  // outlives the call
  std::optional<CallOperation> call;
  rtrs_operation* operation = nullptr;  ///< null: the job is idle
  std::uint16_t slot = 0;

  void begin(const CallPlan& plan, CallOperation::Start& started) {
    call.emplace(plan, &started);
    slot = plan.slot;
    job.operation = &*call;
    job.context = this;
  }
  /// Frees the resources that it used.
  void clear() {
    call.reset();
    owned.clear();
  }
};

bool Submissions::on_its_thread() { return is_its_thread; }

Submissions::Submissions(Client& client, CallSlots& slots)
    : client_{client}, slots_{slots}, wake_{make_eventfd()}, done_signal_{make_eventfd()} {
  loop_ = client_.take_lane(client_.lanes() - 1);
  thread_ = std::thread{[this] { run(); }};
}

Submissions::~Submissions() {
  stopping_ = true;
  wake();
  thread_.join();
  tell_all(loop_->collect());
  for (const auto& job : jobs_) {
    if (job->operation == nullptr || !loop_->cancel(job->job)) continue;
    rtrs_operation& operation = *job->operation;
    slots_.give_back(job->slot);
    give_back(*job);
    operation.error = ECANCELED;
    if (operation.done != nullptr) operation.done(&operation);
  }
  tell_all(loop_->collect());  // operations that ended meanwhile
  loop_.reset();
  ::close(wake_);
  ::close(done_signal_);
}

void Submissions::wake() const { eventfd_write(wake_, 1); }

// ---- Callers ------------------------------------------------------------------------------------

int Submissions::submit(rtrs_operation& operation, CallPlan plan) {
  Job& job = take_job();
  CallOperation::Start started;
  if (asks(operation)) {
    operation.answer = nullptr;
    plan.owned = &job.owned;
  }
  job.begin(plan, started);
  {
    const std::lock_guard lock{mutex_};
    job.operation = &operation;
  }
  // From here on the job may end at any time.
  bool look = false;
  {
    const std::lock_guard lock{loop_mutex_};
    loop_->start(job.job);
    loop_->flush();
    look = started.ended || has_unsent();
  }
  if (look) wake();
  return started.refused ? EAGAIN : 0;
}

/// With loop_mutex_: the thread must poll for more than it does.
bool Submissions::has_unsent() {
  descriptors_.clear();
  loop_->watch(descriptors_);
  return std::ranges::any_of(descriptors_,
                             [](const pollfd& entry) { return (entry.events & POLLOUT) != 0; });
}

int Submissions::cancel(rtrs_operation& operation) {
  const std::scoped_lock lock{loop_mutex_, mutex_};
  const auto found =
      std::ranges::find_if(jobs_, [&](const auto& job) { return job->operation == &operation; });
  if (found == jobs_.end() || !loop_->cancel((*found)->job)) return ENOENT;
  slots_.give_back((*found)->slot);
  (*found)->clear();
  (*found)->operation = nullptr;
  idle_.push_back(found->get());
  return 0;
}

int Submissions::next(rtrs_operation** operations, int count) {
  const std::lock_guard lock{mutex_};
  int taken = 0;
  while (taken < count && done_head_ != nullptr) {
    rtrs_operation* operation = done_head_;
    done_head_ = static_cast<rtrs_operation*>(operation->private_data);
    operation->private_data = nullptr;
    operations[taken++] = operation;
  }
  if (done_head_ == nullptr) {
    done_tail_ = nullptr;
    eventfd_t ignored;
    eventfd_read(done_signal_, &ignored);
  }
  return taken;
}

Submissions::Job& Submissions::take_job() {
  const std::lock_guard lock{mutex_};
  if (idle_.empty()) {
    jobs_.push_back(std::make_unique<Job>());
    idle_.reserve(jobs_.size());  // nothing is allocated when one comes back
    return *jobs_.back();
  }
  Job& job = *idle_.back();
  idle_.pop_back();
  return job;
}

void Submissions::give_back(Job& job) {
  job.clear();
  const std::lock_guard lock{mutex_};
  job.operation = nullptr;
  idle_.push_back(&job);
}

// ---- The thread ---------------------------------------------------------------------------------

void Submissions::run() {
  pthread_setname_np(pthread_self(), "rtrs-submit");
  is_its_thread = true;
  std::vector<pollfd> descriptors;
  bool more = false;
  while (!stopping_) {
    descriptors.clear();
    {
      const std::lock_guard lock{loop_mutex_};
      loop_->watch(descriptors);
    }
    descriptors.push_back({wake_, POLLIN, 0});
    poll(descriptors.data(), descriptors.size(), more ? 0 : -1);
    if (descriptors.back().revents != 0) {
      eventfd_t ignored;
      eventfd_read(wake_, &ignored);
    }
    descriptors.pop_back();
    LaneLoop::Job* ended = nullptr;
    {
      const std::lock_guard lock{loop_mutex_};
      more = loop_->progress(descriptors);
      ended = loop_->collect();
    }
    tell_all(ended);
  }
}

void Submissions::tell_all(LaneLoop::Job* ended) {
  while (ended != nullptr) {
    LaneLoop::Job* const following = ended->next;
    end(*static_cast<Job*>(ended->context));
    ended = following;
  }
}

void Submissions::end(Job& job) {
  rtrs_operation& operation = *job.operation;
  const bool refused = job.call->refused();
  int error = job.call->error();
  if (error == EIO && job.call->in_doubt() && !client_.alive()) error = ENOTRECOVERABLE;
  const std::uint64_t length = job.call->answer_length();
  void* const answer = error == 0 ? job.owned.take() : nullptr;
  slots_.give_back(job.slot);
  give_back(job);
  if (refused) return;  // which its caller knows, and the operation is his again
  if (answer != nullptr) operation.answer = answer;
  operation.error = error;
  operation.answer_length = error == 0 ? length : 0;
  if (operation.done != nullptr) {
    operation.done(&operation);
  } else {
    tell(operation);
  }
}

void Submissions::tell(rtrs_operation& operation) {
  operation.private_data = nullptr;
  const std::lock_guard lock{mutex_};
  const bool first = done_head_ == nullptr;
  if (first) {
    done_head_ = &operation;
  } else {
    done_tail_->private_data = &operation;
  }
  done_tail_ = &operation;
  if (first) eventfd_write(done_signal_, 1);
}

}  // namespace rtrs::library
