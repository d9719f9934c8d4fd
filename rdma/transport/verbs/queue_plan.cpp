// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/queue_plan.hpp"

#include <algorithm>
#include <cerrno>

#include "rdma/transport/verbs/domain.hpp"
#include "rdma/transport/verbs/send_queue.hpp"

namespace rtrs::verbs {

tl::expected<QueuePlan, Failure> plan_queues(const char* device, const ibv_device_attr& limits,
                                             const QueueSizes& sizes, unsigned inlined,
                                             const OptionWords& words) {
  const auto most = static_cast<unsigned>(limits.max_qp_wr);
  const auto most_completions = static_cast<unsigned>(limits.max_cqe);
  QueuePlan plan;
  plan.queues.max_recv_wr = std::min(most, sizes.receives + 1);
  // Binds go past the send queue's own count.
  plan.queues.max_send_wr =
      std::min(most, sizes.sends + sizes.keys + 2 * SendQueue::kSignalInterval);
  plan.queues.max_send_sge = 1;
  plan.queues.max_recv_sge = 1;
  plan.queues.max_inline_data = inlined;
  if (plan.queues.max_recv_wr < sizes.receives) {
    plan.queues.max_recv_wr = sizes.receives;
    return tl::unexpected(refused_queue_pair(device, plan.queues, most, ENOMEM, words));
  }
  // All that is in the queues of a connection completes at once when it breaks.
  const unsigned least_sends = sizes.keys + 1;
  if (most_completions < plan.queues.max_recv_wr ||
      most_completions - plan.queues.max_recv_wr < least_sends) {
    return tl::unexpected(refused_completions(device, plan.queues.max_recv_wr + least_sends,
                                              most_completions, words));
  }
  plan.queues.max_send_wr =
      std::min(plan.queues.max_send_wr, most_completions - plan.queues.max_recv_wr);
  plan.completions = static_cast<int>(plan.queues.max_send_wr + plan.queues.max_recv_wr);
  return plan;
}

}  // namespace rtrs::verbs
