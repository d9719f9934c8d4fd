// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/completion_queue.hpp"

#include <fcntl.h>

#include <cerrno>

#include "rdma/transport/verbs/domain.hpp"
#include "rdma/transport/verbs/receive_queue.hpp"

namespace rtrs::verbs {

/// A receive fails for the peer's message (devices differ in the status), or without a word when
/// this side's device refused one of the peer's requests.
std::string meaning_of(const ibv_wc& completion) {
  const bool is_receive = (completion.wr_id & ReceiveQueue::kIdBit) != 0;
  const auto is = [&](auto... statuses) { return ((completion.status == statuses) || ...); };
  if (is_receive && is(IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR)) {
    return "protocol violation: a message longer than any that is awaited";
  }
  const bool is_remote = is(IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR);
  if (is(IBV_WC_WR_FLUSH_ERR) || (is_receive && is_remote)) {
    return "the connection broke; the device often says no more when a peer used "
           "a key or an address that it may not use";
  }
  const std::string status = ibv_wc_status_str(completion.status);
  if (is_remote) return "the peer refuses what it asked us to do with its memory: " + status;
  return "RDMA error: " + status;
}

tl::expected<std::unique_ptr<CompletionQueue>, Failure> CompletionQueue::create(ibv_context* device,
                                                                                int entries) {
  std::unique_ptr<CompletionQueue> self{new CompletionQueue};
  self->channel_ = ibv_create_comp_channel(device);
  if (self->channel_ == nullptr) return tl::unexpected(refused("a completion channel", errno));
  const int flags = fcntl(self->channel_->fd, F_GETFL);
  fcntl(self->channel_->fd, F_SETFL, flags | O_NONBLOCK);
  self->queue_ = ibv_create_cq(device, entries, nullptr, self->channel_, 0);
  if (self->queue_ == nullptr) return tl::unexpected(refused("a completion queue", errno));
  return self;
}

CompletionQueue::~CompletionQueue() {
  if (queue_ != nullptr) ibv_destroy_cq(queue_);
  if (channel_ != nullptr) ibv_destroy_comp_channel(channel_);
}

int CompletionQueue::arm() {
  const int error = ibv_req_notify_cq(queue_, /*solicited_only=*/0);
  armed_ = error == 0;
  return error;
}

bool CompletionQueue::take_event() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(channel_, &queue, &context) != 0) return false;
  ibv_ack_cq_events(queue, 1);
  armed_ = false;
  return true;
}

}  // namespace rtrs::verbs
