// SPDX-License-Identifier: BSD-3-Clause
// Passes an event loop's transfers to a mirror's thread and back, many at a time.
#pragma once

#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/mailbox.hpp"

namespace rnbd::mirror {

class Mirror;

/// The operation of a job is a TransferOperation. It only carries the transfer to the thread and
/// the answer back; the sessions with members run other operations.
///
/// Threads: its event loop's, except end() and publish(), which the mirror's thread calls.
class MirrorLane final : public rtrs::LaneLoop {
 public:
  /// All its jobs have been collected when it ends.
  explicit MirrorLane(std::shared_ptr<Mirror> mirror) : mirror_{std::move(mirror)} {}

  void start(Job& job) override;
  void flush() override;
  std::size_t watch(std::vector<pollfd>& descriptors) override;
  bool progress(std::span<const pollfd> polled) override;
  bool await() override { return false; }
  Job* collect() override;
  bool cancel(Job& job) override;
  unsigned permits() const override { return std::numeric_limits<unsigned>::max(); }

  /// Stores the answer of a job. After publish() the event loop can collect it, and the lane may be
  /// destroyed.
  void end(Job& job, int error);
  void publish();

 private:
  /// Linked by Job::next, in order.
  struct Jobs {
    Job* first = nullptr;
    Job* last = nullptr;
    void add(const Jobs& others);
  };

  const std::shared_ptr<Mirror> mirror_;
  rtrs::WakeUp wake_;
  std::vector<Job*> started_;  ///< since the last flush()
  std::size_t under_way_ = 0;
  Jobs fresh_;  ///< jobs that ended since the last publish(); the mirror's thread only
  std::mutex mutex_;
  Jobs ended_;  ///< guarded by mutex_
};

}  // namespace rnbd::mirror
