// SPDX-License-Identifier: BSD-3-Clause
// An event loop's way to a mirror.
#pragma once

#include <limits>
#include <memory>
#include <vector>

#include "bridge/client/mirror/group_driver.hpp"
#include "rdma/client.hpp"

namespace rnbd::mirror {

class Mirror;

/// The loop's thread begins its requests itself, sends the commands that these need to the members,
/// and takes their answers in. The operation of a job is a TransferOperation. It only carries the
/// transfer to the group and the answer back; the sessions with members run other operations.
///
/// Threads: its event loop's, except answered().
class MirrorLane final : public rtrs::LaneLoop, private CallUser {
 public:
  /// `mirror` has the driver, and stays until the lane ends. All its jobs have been collected then.
  MirrorLane(std::shared_ptr<Mirror> mirror, GroupDriver& driver, unsigned lane);
  ~MirrorLane() override;

  void start(Job& job) override;
  void flush() override;
  std::size_t watch(std::vector<pollfd>& descriptors) override;
  bool progress(std::span<const pollfd> polled) override;
  bool await(rtrs::OneCall* /*call*/) override { return false; }
  Job* collect() override;
  bool cancel(Job& job) override;
  unsigned permits() const override { return std::numeric_limits<unsigned>::max(); }

 private:
  /// Linked by Job::next, in order.
  struct Jobs {
    Job* first = nullptr;
    Job* last = nullptr;
    void add(const Jobs& others);
  };

  void answered(Call& call, int error) override;
  void turn();

  const std::shared_ptr<Mirror> mirror_;
  GroupDriver& driver_;
  std::unique_ptr<TaskSender> sender_;  ///< the driver's, after the end
  std::vector<Job*> started_;           ///< since the last flush()
  std::size_t under_way_ = 0;
  Jobs answered_;  ///< guarded by the mirror's mutex
  Jobs ended_;     ///< of these, in an earlier turn
};

}  // namespace rnbd::mirror
