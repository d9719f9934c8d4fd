// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/queue_pair.hpp"

#include <endian.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "rdma/wire/ensure.hpp"

namespace rtrs::verbs {
namespace {

constexpr int kPollBatch = 16;
/// Completions per progress(), so that one busy peer cannot keep a reactor to itself.
constexpr int kMaxCompletions = 256;

}  // namespace

std::string VerbsQueuePair::statistics() const {
  return std::to_string(arrivals_) + " arrivals, " + std::to_string(sends_->last_posted()) +
         " sends, " + std::to_string(send_completions_) + " completions of sends";
}

bool VerbsQueuePair::fail(std::string why) {
  if (failure_.empty()) failure_ = std::move(why);
  return false;
}

// ---- Windows -----------------------------------------------------------------------------------

tl::expected<void, Failure> VerbsQueuePair::register_memory(MutableBytes memory) {
  auto region = domain_->adopt(memory);
  if (!region) return tl::unexpected(region.error());
  windows_.know(std::move(*region));
  return {};
}

/// In the error state the device sends nothing, and takes nothing that comes.
/// Source: ibv_modify_qp(3); InfiniBand specification, volume 1, 10.3.1.6.
void VerbsQueuePair::abandon(std::uint32_t window) {
  if (!usable() || !windows_.works_in_place(window)) return;
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_ERR;
  ibv_modify_qp(queue_pair_, &attributes, IBV_QP_STATE);
  fail("a caller took back memory in which the device worked");
}

RemoteMemory VerbsQueuePair::expose(std::uint32_t window, MutableBytes memory) {
  if (ibv_mw* key_window = domain_->key_window(window); key_window != nullptr) {
    // In the order of the queue, so it holds before the message that tells the key.
    bind(key_window, memory, kBindBit, 0);
    return {reinterpret_cast<std::uintptr_t>(memory.data()), key_window->rkey};
  }
  return windows_.expose(window, memory);
}

void VerbsQueuePair::revoke(std::uint32_t window) {
  if (!usable()) return;
  // No memory = no access. The region is named all the same: some providers look at it.
  bind(domain_->key_window(window), {}, kBindBit | window, IBV_SEND_SIGNALED);
}

bool VerbsQueuePair::bind(ibv_mw* key_window, ConstBytes memory, std::uint64_t id, unsigned flags) {
  if (!usable()) return false;
  ibv_mw_bind request{};
  request.wr_id = id;
  request.send_flags = flags;
  request.bind_info.mr = windows_.windowed();
  request.bind_info.addr = reinterpret_cast<std::uintptr_t>(memory.data());
  request.bind_info.length = memory.size();
  request.bind_info.mw_access_flags = memory.empty() ? 0 : IBV_ACCESS_REMOTE_WRITE;
  if (const int error = ibv_bind_mw(queue_pair_, key_window, &request); error != 0) {
    return fail(std::string{"cannot bind a memory window: "} + describe(error));
  }
  return true;
}

// ---- Sending -----------------------------------------------------------------------------------

Ticket VerbsQueuePair::posted() {
  if (sends_->waiting() == 1) wake();
  return sends_->last_pushed();
}

void VerbsQueuePair::attach_data(Post& post, ConstBytes data) const {
  if (data.empty()) return;
  post.data = data.data();
  post.length = static_cast<std::uint32_t>(data.size());
  post.key = windows_.key_of(data);
}

Ticket VerbsQueuePair::write_with_immediate(RemoteMemory to, ConstBytes data, ConstBytes header,
                                            std::uint32_t immediate) {
  if (!header.empty() && !data.empty() && !windows_.is_staged(data)) {
    // There is no room behind them. The device keeps the order of two writes.
    write(to, data);
    to.address += data.size();
    data = {};
  }
  Post& post = sends_->add(IBV_WR_RDMA_WRITE_WITH_IMM, to, immediate);
  attach_data(post, data);
  if (!header.empty() && data.empty()) {
    post.copy_in(header);
  } else if (!header.empty()) {
    windows_.append(data, header);
    post.length += static_cast<std::uint32_t>(header.size());
  }
  return posted();
}

Ticket VerbsQueuePair::write(RemoteMemory to, ConstBytes data) {
  attach_data(sends_->add(IBV_WR_RDMA_WRITE, to, 0), data);
  return posted();
}

Ticket VerbsQueuePair::read(RemoteMemory from, MutableBytes into) {
  return post_confirmed(IBV_WR_RDMA_READ, from, into);
}

Ticket VerbsQueuePair::write_confirmed(RemoteMemory to, ConstBytes data) {
  return post_confirmed(IBV_WR_RDMA_WRITE, to, data);
}

/// The completion of the work request is its end: the peer's device has answered or acknowledged.
Ticket VerbsQueuePair::post_confirmed(ibv_wr_opcode opcode, RemoteMemory where, ConstBytes memory) {
  RTRS_ENSURE(end_unconfirmed_ - first_unconfirmed_ < unconfirmed_.size());
  Post& post = sends_->add(opcode, where, 0);
  post.signalled = true;
  attach_data(post, memory);
  unconfirmed_[end_unconfirmed_++ % unconfirmed_.size()] = sends_->last_pushed();
  return posted();
}

Ticket VerbsQueuePair::send(ConstBytes message) { return post_message(IBV_WR_SEND, message, 0); }

Ticket VerbsQueuePair::send_with_immediate(ConstBytes message, std::uint32_t immediate) {
  return post_message(IBV_WR_SEND_WITH_IMM, message, immediate);
}

Ticket VerbsQueuePair::send_with_invalidate(std::uint32_t key) {
  sends_->add(IBV_WR_SEND_WITH_INV, {}, key);
  return posted();
}

Ticket VerbsQueuePair::post_message(ibv_wr_opcode opcode, ConstBytes message,
                                    std::uint32_t immediate) {
  if (message.size() <= sizeof(Post::copy)) {
    sends_->add(opcode, {}, immediate).copy_in(message);
    return posted();
  }
  // Only handshakes have messages of this size.
  auto region = Region::allocate(domain_->handle(), message.size());
  if (!region) {
    fail(region.error().text);
    return sends_->last_pushed();
  }
  std::memcpy((*region)->bytes().data(), message.data(), message.size());
  Post& post = sends_->add(opcode, {}, immediate);
  post.data = (*region)->bytes().data();
  post.length = static_cast<std::uint32_t>(message.size());
  post.key = (*region)->local_key();
  post.owned = std::move(*region);
  return posted();
}

void VerbsQueuePair::post_receives(unsigned count, std::uint32_t bytes) {
  if (!usable()) return;
  receives_->add(count, bytes);
  if (progressing_) return;  // a batch of them goes out with its end
  if (std::string error = receives_->flush(); !error.empty()) fail(std::move(error));
}

void VerbsQueuePair::flush() {
  if (!usable()) return;
  // Receives first: messages may be answered as soon as they are sent.
  if (std::string error = receives_->flush(); !error.empty()) {
    fail(std::move(error));
    return;
  }
  if (std::string error = sends_->flush(); !error.empty()) fail(std::move(error));
}

// ---- Receiving ---------------------------------------------------------------------------------

bool VerbsQueuePair::arm() {
  const int error = completions_->arm();
  return error == 0 || fail(std::string{"cannot ask for completion events: "} + describe(error));
}

Connection::Status VerbsQueuePair::progress(QueuePairHandler& handler) {
  if (!usable()) return failed_status();
  bool quiet = !completions_->armed() || !completions_->take_event();
  told_ = told_ || !quiet;
  const Status status = read(handler, quiet);
  // A driver that waits for edges gets one event for all arrivals. While completions are found
  // without being told of them, this costs nothing.
  if (quiet || (told_ && status == Status::drained)) read_events();
  if (usable() && closed_by_peer_) {
    // Earlier arrivals; a peer that goes on sending all the same is not read for ever.
    for (int round = 0; round < 4 && read(handler, quiet) == Status::more; ++round) continue;
    end_by_peer();
  }
  flush();
  return usable() ? status : failed_status();
}

Connection::Status VerbsQueuePair::glance(QueuePairHandler& handler) {
  if (!usable()) return failed_status();
  bool quiet = true;
  const Status status = read(handler, quiet);
  return usable() ? status : failed_status();
}

/// `quiet` becomes false when there was something.
Connection::Status VerbsQueuePair::read(QueuePairHandler& handler, bool& quiet) {
  progressing_ = true;
  Status status = Status::more;
  for (int seen = 0; seen < kMaxCompletions && usable();) {
    std::array<ibv_wc, kPollBatch> batch;
    const int n = completions_->poll(batch);
    if (n < 0) fail("the completion queue cannot be read");
    for (int i = 0; i < n && usable(); ++i)
      on_completion(batch[static_cast<std::size_t>(i)], handler);
    flush();
    seen += n;
    quiet = quiet && n == 0;
    if (n != 0) continue;
    if (completions_->armed()) {
      status = Status::drained;
      break;
    }
    arm();  // and look again: a completion that came before is not told
  }
  progressing_ = false;
  return status;
}

Connection::Status VerbsQueuePair::failed_status() {
  if (queue_pair_ != nullptr) read_cm_events();
  return ended_by_peer_ ? Status::closed : Status::broken;
}

bool VerbsQueuePair::on_completion(const ibv_wc& completion, QueuePairHandler& handler) {
  if (completion.status != IBV_WC_SUCCESS) {
    if (completion.status != IBV_WC_WR_FLUSH_ERR) return fail(meaning_of(completion));
    read_events();  // which may know better
    return closed_by_peer_ ? end_by_peer() : fail(meaning_of(completion));
  }
  if ((completion.wr_id & ReceiveQueue::kIdBit) != 0) return on_receive(completion, handler);
  if ((completion.wr_id & kBindBit) != 0) {
    const Complaint complaint = handler.on_revoked(static_cast<std::uint32_t>(completion.wr_id));
    return complaint == nullptr || fail(std::string{"protocol violation: "} + complaint);
  }
  ++send_completions_;
  return on_sent(completion.wr_id, handler);
}

/// Completions come in the order of the queue.
bool VerbsQueuePair::on_sent(Ticket ticket, QueuePairHandler& handler) {
  sends_->complete(ticket);
  if (first_unconfirmed_ == end_unconfirmed_) return true;
  if (unconfirmed_[first_unconfirmed_ % unconfirmed_.size()] != ticket) return true;
  ++first_unconfirmed_;
  const Complaint complaint = handler.on_done(ticket);
  return complaint == nullptr || fail(std::string{"protocol violation: "} + complaint);
}

bool VerbsQueuePair::on_receive(const ibv_wc& completion, QueuePairHandler& handler) {
  ++arrivals_;
  const bool has_immediate = (completion.wc_flags & IBV_WC_WITH_IMM) != 0;
  const std::uint32_t immediate = has_immediate ? be32toh(completion.imm_data) : 0;
  Complaint complaint = nullptr;
  if (completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
    receives_->release(completion.wr_id);
    complaint = handler.on_write_with_immediate(immediate, completion.byte_len);
  } else if ((completion.wc_flags & IBV_WC_WITH_INV) != 0) {
    receives_->release(completion.wr_id);  // it took a receive, and that is all
  } else {
    complaint =
        handler.on_message(receives_->message(completion.wr_id, completion.byte_len),
                           has_immediate ? std::optional<std::uint32_t>{immediate} : std::nullopt);
    receives_->release(completion.wr_id);
  }
  if (complaint != nullptr) return fail(std::string{"protocol violation: "} + complaint);
  return true;
}

bool VerbsQueuePair::end_by_peer() {
  ended_by_peer_ = failure_.empty();
  return fail("the peer closed the connection");
}

/// Reads the events of the descriptor beside completions.
void VerbsQueuePair::read_events() {
  told_ = false;
  AsyncEvents& device = domain_->events();
  std::array<epoll_event, 4> ready;
  const int count = epoll_wait(events_, ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    const int descriptor = ready[static_cast<std::size_t>(i)].data.fd;
    if (descriptor == id_.descriptor()) read_cm_events();
    if (descriptor == device.descriptor()) device.read();
  }
  if (const char* trouble = trouble_.load(std::memory_order_relaxed)) fail(trouble);
}

void VerbsQueuePair::read_cm_events() {
  rdma_cm_event* event = nullptr;
  while (rdma_get_cm_event(id_.channel(), &event) == 0) {
    const rdma_cm_event_type type = event->event;
    rdma_ack_cm_event(event);
    switch (type) {
      case RDMA_CM_EVENT_ESTABLISHED:
      case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        break;
      case RDMA_CM_EVENT_DISCONNECTED:
        closed_by_peer_ = closed_by_peer_ || failure_.empty();
        break;
      case RDMA_CM_EVENT_DEVICE_REMOVAL:
        fail("the RDMA device was removed");
        break;
      default:
        fail(std::string{"connection manager: "} + rdma_event_str(type));
        break;
    }
  }
}

}  // namespace rtrs::verbs
