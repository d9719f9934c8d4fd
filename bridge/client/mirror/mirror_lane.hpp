// SPDX-License-Identifier: BSD-3-Clause
// The way of an event loop's transfers to a mirror's thread and back, many at a time.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "rdma/client.hpp"

namespace rnbd::mirror {

class Mirror;

/// Its jobs' operations are TransferOperations, which carry the transfer there and the answer back.
/// The members' sessions carry other operations.
///
/// Threads: its event loop's; end() and publish() are for the mirror's thread.
class MirrorLane final : public rtrs::LaneLoop {
 public:
  explicit MirrorLane(std::shared_ptr<Mirror> mirror);
  /// All its jobs have been collected.
  ~MirrorLane() override;

  void start(Job& job) override;
  void flush() override;
  std::size_t watch(std::vector<pollfd>& descriptors) override;
  bool progress(std::span<const pollfd> polled) override;
  bool await() override { return false; }
  Job* collect() override;
  bool cancel(Job& job) override;

  /// The job has this answer; publish() lets it be collected. The lane may be gone after that.
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
  int wake_;                   ///< eventfd
  std::vector<Job*> started_;  ///< since the last flush()
  std::size_t under_way_ = 0;
  Jobs fresh_;  ///< the mirror's thread: have ended since the last publish()
  std::mutex mutex_;
  Jobs ended_;  ///< guarded by mutex_
};

}  // namespace rnbd::mirror
