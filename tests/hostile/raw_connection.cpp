// SPDX-License-Identifier: BSD-3-Clause
#include "tests/hostile/raw_connection.hpp"

#include <endian.h>
#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

namespace rtrs::hostile {
namespace {

constexpr std::size_t kOutgoing = 1 << 18;
constexpr std::size_t kOutgoingAt = RawConnection::kMemory;
constexpr std::size_t kReceivesAt = kOutgoingAt + kOutgoing;
constexpr unsigned kSends = 4096;
constexpr std::uint64_t kIsReceive = std::uint64_t{1} << 63;

void require(bool ok, const char* what) {
  if (!ok) throw std::runtime_error{std::string{"raw connection: "} + what};
}

rdma_cm_event_type await_event(const verbs::CmId& id) {
  pollfd descriptor{id.descriptor(), POLLIN, 0};
  require(poll(&descriptor, 1, static_cast<int>(kLimit.count())) == 1, "no event of the RDMA CM");
  rdma_cm_event* event = nullptr;
  require(rdma_get_cm_event(id.channel(), &event) == 0, "no event of the RDMA CM");
  const auto type = event->event;
  rdma_ack_cm_event(event);
  return type;
}

}  // namespace

std::unique_ptr<RawConnection> RawConnection::toward(const std::string& host, std::uint16_t port) {
  auto address = verbs::parse_address(host, port);
  require(address.has_value(), "not an address");
  auto id = verbs::CmId::create(address->space);
  if (!id) throw std::runtime_error{id.error().text};
  require(rdma_resolve_addr(id->get(), nullptr, address->get(), 5000) == 0, "resolve");
  require(await_event(*id) == RDMA_CM_EVENT_ADDR_RESOLVED, "resolve the address");
  require(rdma_resolve_route(id->get(), 5000) == 0, "resolve the route");
  require(await_event(*id) == RDMA_CM_EVENT_ROUTE_RESOLVED, "resolve the route");
  return std::make_unique<RawConnection>(std::move(*id));
}

RawConnection::RawConnection(verbs::CmId id, std::shared_ptr<ibv_pd> domain)
    : id_{std::move(id)}, memory_(kReceivesAt + kReceives * kReceive), domain_{std::move(domain)} {
  if (domain_ == nullptr) {
    ibv_pd* fresh = ibv_alloc_pd(id_->verbs);
    require(fresh != nullptr, "protection domain");
    domain_ = {fresh, ibv_dealloc_pd};
  }
  region_ = ibv_reg_mr(domain_.get(), memory_.data(), memory_.size(),
                       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  require(region_ != nullptr, "memory region");
  channel_ = ibv_create_comp_channel(id_->verbs);
  require(channel_ != nullptr, "completion channel");
  fcntl(channel_->fd, F_SETFL, fcntl(channel_->fd, F_GETFL) | O_NONBLOCK);
  completions_ = ibv_create_cq(id_->verbs, kSends + kReceives, nullptr, channel_, 0);
  require(completions_ != nullptr, "completion queue");
  ibv_qp_init_attr wanted{};
  wanted.qp_type = IBV_QPT_RC;
  wanted.send_cq = wanted.recv_cq = completions_;
  wanted.cap = {kSends, kReceives, 1, 1, 0};
  require(rdma_create_qp(id_.get(), domain_.get(), &wanted) == 0, "queue pair");
}

RawConnection::~RawConnection() {
  rdma_destroy_qp(id_.get());
  ibv_destroy_cq(completions_);
  ibv_destroy_comp_channel(channel_);
  ibv_dereg_mr(region_);
}

void RawConnection::connect(ConstBytes record) {
  rdma_conn_param parameters{};
  parameters.private_data = record.data();
  parameters.private_data_len = static_cast<std::uint8_t>(record.size());
  parameters.retry_count = parameters.rnr_retry_count = 7;
  require(rdma_connect(id_.get(), &parameters) == 0, "connect");
}

Answer RawConnection::answer() {
  if (!wait_until([this] { return established_ || refused_ || disconnected_; })) return {-1, false};
  const auto answer = wire::decode_connect_response(record_);
  if (!answer) return {refused_ || disconnected_ ? -1 : 0, false};
  accepted_ = answer->accept;
  return {answer->error, true};
}

wire::ConnectResponse RawConnection::response() const {
  require(record_.size() >= sizeof(wire::ConnectResponse), "no record in the answer");
  return wire::copy_of<wire::ConnectResponse>(record_);
}

Binding RawConnection::binding() const {
  ibv_qp_attr attributes{};
  ibv_qp_init_attr initial{};
  union ibv_gid own {};
  require(ibv_query_qp(id_->qp, &attributes, IBV_QP_AV | IBV_QP_DEST_QPN, &initial) == 0, "query");
  const ibv_ah_attr& way = attributes.ah_attr;
  require(ibv_query_gid(id_->verbs, way.port_num, way.grh.sgid_index, &own) == 0, "gid");
  const std::array<std::uint32_t, 2> numbers{htole32(id_->qp->qp_num),
                                             htole32(attributes.dest_qp_num)};
  Binding binding{};
  std::memcpy(binding.data(), own.raw, sizeof(own.raw));
  std::memcpy(binding.data() + 16, way.grh.dgid.raw, sizeof(own.raw));
  std::memcpy(binding.data() + 32, numbers.data(), sizeof(numbers));
  return binding;
}

void RawConnection::accept(ConstBytes record) {
  rdma_conn_param parameters{};
  parameters.private_data = record.data();
  parameters.private_data_len = static_cast<std::uint8_t>(record.size());
  parameters.rnr_retry_count = 7;
  require(rdma_accept(id_.get(), &parameters) == 0, "accept");
}

void RawConnection::reject(ConstBytes record) {
  rdma_reject(id_.get(), record.data(), static_cast<std::uint8_t>(record.size()));
}

void RawConnection::disconnect() { rdma_disconnect(id_.get()); }

RemoteMemory RawConnection::exposed() const {
  return {reinterpret_cast<std::uintptr_t>(memory_.data()), region_->rkey};
}

// ---- Posting -----------------------------------------------------------------------------------

void RawConnection::receive(unsigned count) {
  for (unsigned i = 0; i < count; ++i, ++posted_) {
    std::byte* buffer = memory_.data() + kReceivesAt + posted_ % kReceives * kReceive;
    ibv_sge element{reinterpret_cast<std::uintptr_t>(buffer), kReceive, region_->lkey};
    ibv_recv_wr request{};
    request.wr_id = kIsReceive | posted_ % kReceives;
    request.sg_list = &element;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    if (ibv_post_recv(id_->qp, &request, &bad) != 0) return;  // it is broken already
  }
}

void RawConnection::post(const Shot& shot) {
  const std::size_t size = shot.payload.size();
  require(size <= kOutgoing, "a payload that is too long");
  if (outgoing_ + size > kOutgoing) outgoing_ = 0;
  std::byte* place = memory_.data() + kOutgoingAt + outgoing_;
  if (size > 0) std::memcpy(place, shot.payload.data(), size);
  outgoing_ += size;
  ibv_sge element{reinterpret_cast<std::uintptr_t>(place), static_cast<std::uint32_t>(size),
                  region_->lkey};
  ibv_send_wr request{};
  request.opcode = shot.opcode;
  request.send_flags = IBV_SEND_SIGNALED;
  request.sg_list = &element;
  request.num_sge = size > 0 ? 1 : 0;
  request.wr.rdma = {shot.to.address, shot.to.key};
  if (shot.opcode == IBV_WR_SEND_WITH_INV) {
    request.invalidate_rkey = shot.immediate;
  } else {
    request.imm_data = htobe32(shot.immediate);
  }
  ibv_send_wr* bad = nullptr;
  // An error means that the queue is full, or the peer was faster in closing.
  while (ibv_post_send(id_->qp, &request, &bad) == ENOMEM && !disconnected_) look();
}

// ---- Waiting -----------------------------------------------------------------------------------

std::optional<Arrival> RawConnection::next() {
  wait_until([this] { return !arrivals_.empty() || disconnected_; });
  if (arrivals_.empty()) return std::nullopt;
  Arrival arrival = std::move(arrivals_.front());
  arrivals_.pop_front();
  return arrival;
}

bool RawConnection::is_closed(std::chrono::milliseconds limit) {
  return wait_until([this] { return disconnected_; }, limit);
}

bool RawConnection::wait_until(const std::function<bool()>& done, std::chrono::milliseconds limit) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + limit;
  for (;;) {
    look();
    if (done()) return true;
    ibv_req_notify_cq(completions_, 0);
    look();
    if (done()) return true;
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return false;
    std::array<pollfd, 2> descriptors{{{channel_->fd, POLLIN, 0}, {id_.descriptor(), POLLIN, 0}}};
    poll(descriptors.data(), descriptors.size(), static_cast<int>(left.count()));
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    if (ibv_get_cq_event(channel_, &queue, &context) == 0) ibv_ack_cq_events(queue, 1);
  }
}

void RawConnection::look() {
  read_completions();
  read_cm_events();
}

void RawConnection::read_completions() {
  ibv_wc completion;
  while (ibv_poll_cq(completions_, 1, &completion) == 1) {
    const bool arrived =
        completion.status == IBV_WC_SUCCESS && (completion.wr_id & kIsReceive) != 0;
    if (arrived) on_receive(completion);
  }
}

void RawConnection::on_receive(const ibv_wc& completion) {
  Arrival arrival;
  arrival.bytes = completion.byte_len;
  if ((completion.wc_flags & IBV_WC_WITH_IMM) != 0) {
    arrival.immediate = be32toh(completion.imm_data);
  }
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
    const std::byte* buffer = memory_.data() + kReceivesAt +
                              static_cast<std::size_t>(completion.wr_id & ~kIsReceive) * kReceive;
    arrival.message.assign(buffer, buffer + completion.byte_len);
  }
  arrivals_.push_back(std::move(arrival));
  receive(1);
}

void RawConnection::read_cm_events() {
  rdma_cm_event* event = nullptr;
  while (rdma_get_cm_event(id_.channel(), &event) == 0) {
    const auto type = event->event;
    const auto& parameters = event->param.conn;
    if ((type == RDMA_CM_EVENT_ESTABLISHED || type == RDMA_CM_EVENT_REJECTED) &&
        parameters.private_data != nullptr) {
      const auto* bytes = static_cast<const std::byte*>(parameters.private_data);
      record_.assign(bytes, bytes + parameters.private_data_len);
    }
    rdma_ack_cm_event(event);
    established_ |= type == RDMA_CM_EVENT_ESTABLISHED;
    refused_ |= type == RDMA_CM_EVENT_REJECTED;
    const bool ended = type == RDMA_CM_EVENT_DISCONNECTED || type == RDMA_CM_EVENT_CONNECT_ERROR ||
                       type == RDMA_CM_EVENT_UNREACHABLE || type == RDMA_CM_EVENT_REJECTED;
    if (ended && !disconnected_) {
      disconnected_ = true;
      rdma_disconnect(id_.get());
    }
  }
}

}  // namespace rtrs::hostile
