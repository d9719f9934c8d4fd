// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/send_queue.hpp"

#include <endian.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "rdma/transport/verbs/cm.hpp"
#include "rdma/wire/ensure.hpp"

namespace rtrs::verbs {
namespace {

constexpr unsigned kSendBatch = 16;
constexpr std::size_t kFirstRing = 64;

bool carries_immediate(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_RDMA_WRITE_WITH_IMM || opcode == IBV_WR_SEND_WITH_IMM;
}

}  // namespace

void Post::copy_in(ConstBytes bytes) {
  RTRS_ENSURE(bytes.size() <= copy.size());
  std::memcpy(copy.data(), bytes.data(), bytes.size());
  copied = static_cast<std::uint32_t>(bytes.size());
}

SendQueue::SendQueue(ibv_qp* queue_pair, Limits limits, std::unique_ptr<Region> copies)
    : queue_pair_{queue_pair},
      limits_{limits},
      interval_{std::clamp(limits.depth / 2, 1U, kSignalInterval)},
      copies_{std::move(copies)},
      ring_(kFirstRing) {}

Post& SendQueue::add(ibv_wr_opcode opcode, RemoteMemory to, std::uint32_t immediate) {
  if (waiting() == ring_.size()) grow();
  Post& post = at(++tail_);
  post.opcode = opcode;
  post.to = to;
  post.data = nullptr;
  post.length = 0;
  post.immediate = immediate;
  post.copied = 0;
  post.signalled = false;
  return post;
}

void SendQueue::grow() {
  std::vector<Post> larger(ring_.size() * 2);
  for (Ticket t = head_ + 1; t <= tail_; ++t) larger[t & (larger.size() - 1)] = std::move(at(t));
  ring_ = std::move(larger);
}

std::string SendQueue::flush() {
  while (!empty()) {
    const auto room = static_cast<unsigned>(limits_.depth - (head_ - completed_));
    const auto n = static_cast<unsigned>(std::min({waiting(), Ticket{room}, Ticket{kSendBatch}}));
    if (n == 0) return {};
    std::array<ibv_send_wr, kSendBatch> requests;
    std::array<ibv_sge, kSendBatch> elements;
    for (unsigned i = 0; i < n; ++i) {
      fill(requests[i], elements[i], at(head_ + 1 + i), head_ + 1 + i);
      requests[i].next = i + 1 < n ? &requests[i + 1] : nullptr;
    }
    ibv_send_wr* bad = nullptr;
    if (const int error = ibv_post_send(queue_pair_, requests.data(), &bad); error != 0) {
      return std::string{"cannot post sends: "} + describe(error);
    }
    for (unsigned i = 0; i < n; ++i) {
      if (Post& post = at(++head_); post.owned) kept_.push_back({head_, std::move(post.owned)});
    }
  }
  return {};
}

void SendQueue::fill(ibv_send_wr& request, ibv_sge& element, Post& post, Ticket ticket) {
  request = {};
  request.wr_id = ticket;
  request.opcode = post.opcode;
  if (carries_immediate(post.opcode)) request.imm_data = htobe32(post.immediate);
  if (post.opcode == IBV_WR_SEND_WITH_INV) request.invalidate_rkey = post.immediate;
  request.wr.rdma.remote_addr = post.to.address;
  request.wr.rdma.rkey = post.to.key;
  if (ticket % interval_ == 0 || post.signalled || post.owned)
    request.send_flags |= IBV_SEND_SIGNALED;
  if (post.length > 0) {
    element = {reinterpret_cast<std::uintptr_t>(post.data), post.length, post.key};
  } else if (post.copied == 0) {
    return;
  } else if (post.copied <= limits_.inlined) {
    element = {reinterpret_cast<std::uintptr_t>(post.copy.data()), post.copied, 0};
    request.send_flags |= IBV_SEND_INLINE;
  } else {
    std::byte* place = copies_->bytes().data() + ticket % limits_.depth * sizeof(post.copy);
    std::memcpy(place, post.copy.data(), post.copied);
    element = {reinterpret_cast<std::uintptr_t>(place), post.copied, copies_->local_key()};
  }
  request.sg_list = &element;
  request.num_sge = 1;
}

void SendQueue::close() {
  kept_.clear();
  copies_.reset();
  for (Post& post : ring_) post.owned.reset();
}

void SendQueue::complete(Ticket ticket) {
  RTRS_ENSURE(ticket > completed_ && ticket <= head_);
  completed_ = ticket;
  if (kept_.empty()) return;
  std::erase_if(kept_, [ticket](const Kept& kept) { return kept.ticket <= ticket; });
}

}  // namespace rtrs::verbs
