// SPDX-License-Identifier: BSD-3-Clause
// Calls that nobody waits for: a thread carries them through, and tells of their ends.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/library/call_operation.hpp"
#include "rdma/library/call_slots.hpp"
#include "rdma/library/gate.hpp"
#include "rdma/library/include/rtrs.h"
#include "rdma/mailbox.hpp"

namespace rtrs::library {

/// The caller wants an answer in memory of the library; one that was compiled against the first
/// version of the interface cannot.
inline bool asks(const rtrs_operation& operation) {
  constexpr std::size_t kAsking = offsetof(rtrs_operation, answer) + sizeof(void*);
  return operation.size >= kAsking && operation.most != 0;
}

/// Leads the last lane of a client with an event loop of its own. The submitting thread also sends.
/// Operations of the control connection run on the client's background thread.
///
/// Threads: any, but the destructor, which waits for the thread.
class Submissions {
 public:
  /// All must outlive it. Throws when the system has no descriptors or threads left.
  Submissions(Client& client, CallSlots& slots, const Gate& gate);
  /// Operations under way end with ECANCELED.
  ~Submissions();
  Submissions(const Submissions&) = delete;
  Submissions& operator=(const Submissions&) = delete;

  /// Errors: EAGAIN (refused at once), ECANCELED (the gate is closed); then nothing is told.
  int submit(rtrs_operation& operation, CallPlan plan);
  /// The same on the control connection, behind what was submitted there before.
  int submit_control(rtrs_operation& operation, CallPlan plan);
  /// Errors: ENOENT.
  int cancel(rtrs_operation& operation);
  /// The gate is closed: operations under way end with ECANCELED soon.
  void end_all() const { wake_.wake(); }
  /// Readable while next() returns something else than 0.
  int descriptor() const { return done_signal_.descriptor(); }
  /// -1: the gate is closed, and none is left.
  int next(rtrs_operation** operations, int count);

  /// The caller is inside rtrs_operation::done.
  static bool on_its_thread();

 private:
  struct Job;

  void run();
  Job& begin(rtrs_operation& operation, CallPlan& plan, CallOperation::Start* started);
  int start(rtrs_operation& operation, Job& job, const CallOperation::Start& started);
  bool note_start(rtrs_operation& operation, Job& job);
  int refuse(Job& job);
  bool give_up(Job& job);
  LaneLoop::Job* give_up_all();
  void give_up_for_good();
  static void on_control_ended(void* context);
  LaneLoop::Job* take_control_ended();
  void tell_all(LaneLoop::Job* ended);
  bool has_unsent();
  void end(Job& job);
  void tell(rtrs_operation& operation);
  Job& take_job();
  void give_back(Job& job);

  Client& client_;
  CallSlots& slots_;
  const Gate& gate_;
  std::mutex loop_mutex_;  ///< guards loop_, but for the sleep in poll(2)
  std::unique_ptr<LaneLoop> loop_;
  std::vector<pollfd> descriptors_;  ///< of has_unsent()
  WakeUp wake_;                      ///< of the loop, for events beside those of its descriptors
  WakeUp done_signal_;
  std::atomic<bool> stopping_{false};

  std::mutex control_mutex_;                ///< taken last
  LaneLoop::Job* control_ended_ = nullptr;  ///< linked by `next`, the newest first

  std::mutex mutex_;  ///< guards the following members; never taken with the lane held
  std::vector<std::unique_ptr<Job>> jobs_;
  std::vector<Job*> idle_;
  rtrs_operation* done_head_ = nullptr;  ///< linked by private_data
  rtrs_operation* done_tail_ = nullptr;
  bool over_ = false;  ///< the gate is closed, and every operation has been told of

  std::thread thread_;
};

}  // namespace rtrs::library
