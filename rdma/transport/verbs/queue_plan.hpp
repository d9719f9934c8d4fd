// SPDX-License-Identifier: BSD-3-Clause
// The sizes of the queues of a queue pair.
#pragma once

#include <infiniband/verbs.h>

#include <tl/expected.hpp>

#include "rdma/core/option_words.hpp"
#include "rdma/core/queue_pair.hpp"
#include "rdma/failure.hpp"

namespace rtrs::verbs {

/// A queue pair's demands on its device.
struct QueuePlan {
  ibv_qp_cap queues{};
  int completions = 0;  ///< entries: one for each work request that can be in the queues
};

/// As much as is wanted where the device has room for it: posts beyond the send queue wait before
/// it, but a receive that is not posted breaks the connection.
///
/// Errors: ENOMEM, with the device's limit and the setting to lower.
tl::expected<QueuePlan, Failure> plan_queues(const char* device, const ibv_device_attr& limits,
                                             const QueueSizes& sizes, unsigned inlined,
                                             const OptionWords& words);

}  // namespace rtrs::verbs
