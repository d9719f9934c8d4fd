// SPDX-License-Identifier: BSD-3-Clause
// The making and closing of a queue pair of an RDMA device; queue_pair.cpp has its work in between.
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "rdma/transport/clock.hpp"
#include "rdma/transport/verbs/queue_pair.hpp"
#include "rdma/transport/verbs/queue_plan.hpp"

namespace rtrs::verbs {
VerbsQueuePair::VerbsQueuePair(CmId id, std::shared_ptr<Domain> domain)
    : domain_{std::move(domain)}, id_{std::move(id)}, windows_{*domain_} {}

VerbsQueuePair::~VerbsQueuePair() { close(); }

tl::expected<std::unique_ptr<VerbsQueuePair>, Failure> VerbsQueuePair::create(
    CmId&& id, std::shared_ptr<Domain> domain, const QueueSizes& sizes, unsigned inlined) {
  std::unique_ptr<VerbsQueuePair> self{new VerbsQueuePair{std::move(id), std::move(domain)}};
  auto ok = self->build(sizes, inlined);
  if (ok) ok = self->watch();
  if (ok) return self;
  self->release();
  id = std::move(self->id_);
  return tl::unexpected(ok.error());
}

tl::expected<void, Failure> VerbsQueuePair::build(const QueueSizes& sizes, unsigned inlined) {
  ibv_context* device = domain_->device();
  ibv_device_attr limits{};
  if (const int error = ibv_query_device(device, &limits); error != 0) {
    return tl::unexpected(refused("to tell its limits", error));
  }
  const char* name = ibv_get_device_name(device->device);
  const auto plan = plan_queues(name, limits, sizes, inlined, domain_->words());
  if (!plan) return tl::unexpected(plan.error());
  auto completions = CompletionQueue::create(device, plan->completions);
  if (!completions) return tl::unexpected(completions.error());
  completions_ = std::move(*completions);
  ibv_qp_init_attr wanted{};
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = plan->queues;
  wanted.send_cq = wanted.recv_cq = completions_->handle();

  ibv_qp_init_attr granted = wanted;
  if (rdma_create_qp(id_.get(), domain_->handle(), &granted) != 0) {
    // Devices differ most in their limits for inline data: without it everything else may still
    // fit.
    granted = wanted;
    granted.cap.max_inline_data = 0;
    if (rdma_create_qp(id_.get(), domain_->handle(), &granted) != 0) {
      return tl::unexpected(refused_queue_pair(
          name, wanted.cap, static_cast<unsigned>(limits.max_qp_wr), errno, domain_->words()));
    }
  }
  queue_pair_ = id_->qp;
  // Devices may grant more, for which the completion queue has no room.
  const unsigned sends = std::min(granted.cap.max_send_wr, wanted.cap.max_send_wr);
  if (sends <= sizes.keys) {
    return tl::unexpected(
        Failure{ENOTSUP, "always-invalidate needs a send queue of more than " +
                             std::to_string(sizes.keys) + " entries, and the device gives " +
                             std::to_string(sends) + ": " + domain_->words().lower_queue_depth});
  }

  const SendQueue::Limits send_limits{sends - sizes.keys,
                                      std::min(inlined, granted.cap.max_inline_data)};
  std::unique_ptr<Region> copies;
  if (send_limits.inlined < sizeof(Post::copy)) {
    auto region = Region::allocate(domain_->handle(), send_limits.depth * sizeof(Post::copy));
    if (!region) return tl::unexpected(region.error());
    copies = std::move(*region);
  }
  sends_ = std::make_unique<SendQueue>(queue_pair_, send_limits, std::move(copies));
  receives_ = std::make_unique<ReceiveQueue>(domain_->handle(), queue_pair_);
  return {};
}

tl::expected<void, Failure> VerbsQueuePair::watch() {
  const auto failed = [] {
    const int error = errno;
    return tl::unexpected(Failure{
        error, std::string{"cannot watch an RDMA connection: "} + describe(error) +
                   (error == EMFILE ? " (raise the limit of open files, see 'ulimit -n')" : "")});
  };
  events_ = epoll_create1(EPOLL_CLOEXEC);
  if (events_ < 0) return failed();
  for (const int descriptor : {completions_->descriptor(), id_.descriptor()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
    if (epoll_ctl(events_, EPOLL_CTL_ADD, descriptor, &event) != 0) return failed();
  }
  if (!arm()) return tl::unexpected(Failure{EIO, failure_});
  domain_->events().add({.id = id_.get(),
                         .completions = completions_->handle(),
                         .events = events_,
                         .trouble = &trouble_});
  return {};
}

/// GIDs and numbers of both queue pairs, the client's first.
Binding VerbsQueuePair::binding() const {
  Binding binding{};
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  union ibv_gid own {};
  if (!usable() || queue_pair_->context->device->transport_type == IBV_TRANSPORT_IWARP ||
      ibv_query_qp(queue_pair_, &attributes, IBV_QP_AV | IBV_QP_DEST_QPN, &initial) != 0) {
    return binding;
  }
  const ibv_ah_attr& way = attributes.ah_attr;
  if (ibv_query_gid(queue_pair_->context, way.port_num, way.grh.sgid_index, &own) != 0) return {};
  const std::array<wire::le32, 2> numbers{queue_pair_->qp_num, attributes.dest_qp_num};
  const std::size_t ours = end_ == End::client ? 0 : 1;
  const auto put = [&](const void* from, std::size_t size, std::size_t at) {
    std::memcpy(binding.data() + at, from, size);
  };
  put(own.raw, sizeof(own.raw), 16 * ours);
  put(way.grh.dgid.raw, sizeof(own.raw), 16 * (1 - ours));
  put(&numbers[0], sizeof(numbers[0]), 32 + 4 * ours);
  put(&numbers[1], sizeof(numbers[1]), 32 + 4 * (1 - ours));
  return binding;
}

tl::expected<void, Failure> VerbsQueuePair::on_established(End end) {
  end_ = end;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.min_rnr_timer = kRnrTimer;
  const int error = ibv_modify_qp(queue_pair_, &attributes, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER);
  if (error == 0) return {};
  Failure failure = refused("to set a connection's receiver-not-ready timer", error);
  fail(failure.text);
  return tl::unexpected(std::move(failure));
}

/// A write of nothing, behind all that was posted: its completion says that all has arrived.
/// Source: InfiniBand specification, volume 1, C9-88, a write of no bytes needs no key.
bool VerbsQueuePair::finish(Instant until) {
  constexpr std::chrono::microseconds kPause{50};
  if (!usable()) return false;
  if (sends_->empty() && sends_->idle()) return true;
  sends_->add(IBV_WR_RDMA_WRITE, {}, 0).signalled = true;
  while (usable() && now() < until) {
    flush();
    if (!collect_sends()) return false;
    if (sends_->empty() && sends_->idle()) return true;
    std::this_thread::sleep_for(kPause);
  }
  return false;
}

/// False: the connection has ended.
bool VerbsQueuePair::collect_sends() {
  std::array<ibv_wc, 16> batch;
  const int n = completions_->poll(batch);
  for (int i = 0; i < n; ++i) {
    const ibv_wc& completion = batch[static_cast<std::size_t>(i)];
    if (completion.status != IBV_WC_SUCCESS) return false;
    const bool is_send = (completion.wr_id & (ReceiveQueue::kIdBit | kBindBit)) == 0;
    if (is_send) sends_->complete(completion.wr_id);
  }
  return n >= 0;
}

void VerbsQueuePair::close() {
  if (failure_.empty()) failure_ = "closed";
  // Answers the peer's disconnect, too, if it was first.
  if (queue_pair_ != nullptr) rdma_disconnect(id_.get());
  release();
  id_.reset();
}

/// Gives back all but the id. That goes last: with the last one of a device that was removed the
/// device is closed.
void VerbsQueuePair::release() {
  if (queue_pair_ != nullptr) domain_->events().remove(queue_pair_);  // until then it may be told
  // From here on the device touches no memory of this connection.
  if (id_.get() != nullptr && id_->qp != nullptr) rdma_destroy_qp(id_.get());
  queue_pair_ = nullptr;
  if (events_ >= 0) ::close(std::exchange(events_, -1));
  completions_.reset();
  receives_.reset();
  windows_.release();
  if (sends_) sends_->close();
  domain_.reset();
}

}  // namespace rtrs::verbs
