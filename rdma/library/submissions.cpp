// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/submissions.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <span>
#include <utility>

namespace rtrs::library {
namespace {

thread_local bool is_its_thread = false;

}  // namespace

struct Submissions::Job {
  explicit Job(Submissions& owner) : submissions{owner} {}

  Submissions& submissions;
  LaneLoop::Job job;
  OwnedAnswer owned;  // outlives the call
  std::optional<CallOperation> call;
  rtrs_operation* operation = nullptr;  ///< null: the job is not under way
  std::uint16_t slot = 0;
  bool on_control = false;
  bool given_up = false;  ///< since the gate is closed

  void begin(const CallPlan& plan, CallOperation::Start* started) {
    call.emplace(plan, started);
    slot = plan.slot;
    given_up = false;
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

Submissions::Submissions(Client& client, CallSlots& slots, const Gate& gate)
    : client_{client}, slots_{slots}, gate_{gate} {
  loop_ = client_.take_lane(client_.lanes() - 1);
  thread_ = std::thread{[this] { run(); }};
}

Submissions::~Submissions() {
  stopping_ = true;
  wake_.wake();
  thread_.join();
  tell_all(loop_->collect());
  tell_all(take_control_ended());
  tell_all(give_up_all());
  tell_all(loop_->collect());  // operations that ended meanwhile
  tell_all(take_control_ended());
  done_signal_.wake();  // for copies of the descriptor
  loop_.reset();
}

// ---- Callers ------------------------------------------------------------------------------------

int Submissions::submit(rtrs_operation& operation, CallPlan plan) {
  CallOperation::Start started;
  Job& job = begin(operation, plan, &started);
  return start(operation, job, started);
}

int Submissions::submit_control(rtrs_operation& operation, CallPlan plan) {
  const bool no_wait = std::exchange(plan.no_wait, false);  // the permit is there
  Job& job = begin(operation, plan, nullptr);
  job.on_control = true;
  job.call->on_finish(&Submissions::on_control_ended, &job);
  {
    const std::lock_guard lock{loop_mutex_};
    if (!note_start(operation, job)) return refuse(job);
    if (client_.start_control(*job.call)) return 0;
    give_back(job);
  }
  plan.no_wait = no_wait;
  plan.no_path_is_eio = false;
  return submit(operation, plan);
}

/// A job for the operation, which may be started: note_start().
Submissions::Job& Submissions::begin(rtrs_operation& operation, CallPlan& plan,
                                     CallOperation::Start* started) {
  Job& job = take_job();
  if (asks(operation)) {
    operation.answer = nullptr;
    plan.owned = &job.owned;
  }
  job.on_control = false;
  job.begin(plan, started);
  return job;
}

/// With loop_mutex_, as the start that follows. False: the gate is closed.
bool Submissions::note_start(rtrs_operation& operation, Job& job) {
  if (gate_.is_closed()) return false;
  const std::lock_guard lock{mutex_};
  job.operation = &operation;
  return true;
}

int Submissions::refuse(Job& job) {
  slots_.give_back(job.slot);
  give_back(job);
  return ECANCELED;
}

/// From here on the job may end at any time.
int Submissions::start(rtrs_operation& operation, Job& job, const CallOperation::Start& started) {
  bool look = false;
  {
    const std::lock_guard lock{loop_mutex_};
    if (!note_start(operation, job)) return refuse(job);
    loop_->start(job.job);
    loop_->flush();
    look = started.ended || has_unsent();
  }
  if (look) wake_.wake();
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
  if (found == jobs_.end() || !give_up(**found)) return ENOENT;
  slots_.give_back((*found)->slot);
  (*found)->clear();
  (*found)->operation = nullptr;
  idle_.push_back(found->get());
  return 0;
}

/// False: it has ended, and that will be told.
bool Submissions::give_up(Job& job) {
  if (job.given_up) return false;
  return job.on_control ? client_.cancel_control(*job.call) : loop_->cancel(job.job);
}

/// The jobs under way, for tell_all(), but for those that are about to end.
LaneLoop::Job* Submissions::give_up_all() {
  const std::scoped_lock lock{loop_mutex_, mutex_};
  LaneLoop::Job* first = nullptr;
  for (const auto& job : jobs_) {
    if (job->operation == nullptr || !give_up(*job)) continue;
    job->given_up = true;
    job->job.next = std::exchange(first, &job->job);
  }
  return first;
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
    if (over_) return taken != 0 ? taken : -1;
    done_signal_.clear();
  }
  return taken;
}

Submissions::Job& Submissions::take_job() {
  const std::lock_guard lock{mutex_};
  if (idle_.empty()) {
    jobs_.push_back(std::make_unique<Job>(*this));
    idle_.reserve(jobs_.size());  // nothing is allocated when one comes back
    return *jobs_.back();
  }
  Job& job = *idle_.back();
  idle_.pop_back();
  return job;
}

void Submissions::give_back(Job& job) {
  {
    const std::lock_guard lock{mutex_};
    job.operation = nullptr;  // cancel() looks at it no more
  }
  job.clear();
  const std::lock_guard lock{mutex_};
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
    descriptors.push_back({wake_.descriptor(), POLLIN, 0});
    poll(descriptors.data(), descriptors.size(), more ? 0 : -1);
    if (descriptors.back().revents != 0) wake_.clear();
    descriptors.pop_back();
    LaneLoop::Job* ended = nullptr;
    {
      const std::lock_guard lock{loop_mutex_};
      more = loop_->progress(descriptors);
      ended = loop_->collect();
    }
    tell_all(ended);
    tell_all(take_control_ended());
    if (gate_.is_closed()) give_up_for_good();
  }
}

/// The gate is closed: nobody starts any more. Operations that are about to end wake the thread
/// once more.
void Submissions::give_up_for_good() {
  tell_all(give_up_all());
  const std::lock_guard lock{mutex_};
  if (over_ ||
      std::ranges::any_of(jobs_, [](const auto& job) { return job->operation != nullptr; }))
    return;
  over_ = true;
  done_signal_.wake();
}

/// On the background thread of the client. The job may be used again as soon as it is in the list.
void Submissions::on_control_ended(void* context) {
  auto& job = *static_cast<Job*>(context);
  Submissions& self = job.submissions;
  const std::lock_guard lock{self.control_mutex_};
  job.job.next = std::exchange(self.control_ended_, &job.job);
  self.wake_.wake();
}

/// In the order in which they ended.
LaneLoop::Job* Submissions::take_control_ended() {
  const std::lock_guard lock{control_mutex_};
  LaneLoop::Job* oldest = nullptr;
  while (LaneLoop::Job* const job = control_ended_) {
    control_ended_ = std::exchange(job->next, oldest);
    oldest = job;
  }
  return oldest;
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
  int error = job.given_up ? ECANCELED : job.call->error();
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
  if (first) done_signal_.wake();
}

}  // namespace rtrs::library
