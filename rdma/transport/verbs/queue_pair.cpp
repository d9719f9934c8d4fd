#include "rdma/transport/verbs/queue_pair.hpp"

#include <endian.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

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
/// Room behind the data of a window for the header that is sent with them.
constexpr std::size_t kHeaderRoom = sizeof(Post::copy);
constexpr std::size_t kSlotAlignment = 64;
/// Marks the ids of binds among those of all work requests; below it stands the window.
constexpr std::uint64_t kBindBit = std::uint64_t{1} << 62;
/// 0.64 ms: how long a peer waits that found no receive posted; the default is 655 ms.
/// Source: ibv_modify_qp(3), min_rnr_timer.
constexpr std::uint8_t kRnrTimer = 12;

Failure refused(const char* what, int error) {
  return {error, std::string{"the RDMA device refused "} + what + ": " + strerrordesc_np(error)};
}

/// What a failed work request means for people. A receive fails by what the peer sent (devices
/// differ in the status), or without a word when this side's device refused one of the peer's
/// requests.
std::string meaning(const ibv_wc& completion) {
  const bool is_receive = (completion.wr_id & ReceiveQueue::kIdBit) != 0;
  const auto is = [&](auto... statuses) { return ((completion.status == statuses) || ...); };
  if (is_receive && is(IBV_WC_LOC_LEN_ERR, IBV_WC_LOC_QP_OP_ERR)) {
    return "protocol violation: a message longer than any that is awaited";
  }
  const bool is_remote = is(IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_OP_ERR);
  if (is(IBV_WC_WR_FLUSH_ERR) || (is_receive && is_remote)) {
    return "the connection broke: the peer used a key or an address that it may not use";
  }
  const std::string status = ibv_wc_status_str(completion.status);
  if (is_remote) return "the peer refuses what it asked us to do with its memory: " + status;
  return "RDMA error: " + status;
}

Post make_post(ibv_wr_opcode opcode, RemoteMemory to, std::uint32_t immediate) {
  Post post;
  post.opcode = opcode;
  post.to = to;
  post.immediate = immediate;
  return post;
}

void copy_in(Post& post, ConstBytes bytes) {
  RTRS_ENSURE(bytes.size() <= post.copy.size());
  std::memcpy(post.copy.data(), bytes.data(), bytes.size());
  post.copied = static_cast<std::uint32_t>(bytes.size());
}

}  // namespace

// ---- Making and closing ------------------------------------------------------------------------

VerbsQueuePair::VerbsQueuePair(CmId id, std::shared_ptr<Domain> domain)
    : domain_{std::move(domain)}, id_{std::move(id)} {}

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
  const auto most = static_cast<unsigned>(limits.max_qp_wr);
  ibv_qp_init_attr wanted{};
  wanted.qp_type = IBV_QPT_RC;
  // Binds go past the send queue's own count.
  wanted.cap.max_send_wr =
      std::min(most, sizes.sends + sizes.keys + 2 * SendQueue::kSignalInterval);
  wanted.cap.max_recv_wr = std::min(most, sizes.receives + 1);
  wanted.cap.max_send_sge = 1;
  wanted.cap.max_recv_sge = 1;
  wanted.cap.max_inline_data = inlined;
  const int entries = static_cast<int>(std::min<std::uint64_t>(
      wanted.cap.max_send_wr + wanted.cap.max_recv_wr, static_cast<unsigned>(limits.max_cqe)));

  completion_channel_ = ibv_create_comp_channel(device);
  if (completion_channel_ == nullptr) {
    return tl::unexpected(refused("a completion channel", errno));
  }
  fcntl(completion_channel_->fd, F_SETFL, fcntl(completion_channel_->fd, F_GETFL) | O_NONBLOCK);
  completions_ = ibv_create_cq(device, entries, nullptr, completion_channel_, 0);
  if (completions_ == nullptr) return tl::unexpected(refused("a completion queue", errno));
  wanted.send_cq = wanted.recv_cq = completions_;

  ibv_qp_init_attr granted = wanted;
  if (rdma_create_qp(id_.get(), domain_->handle(), &granted) != 0) {
    // Devices differ most in what they inline: without it everything else may still fit.
    granted = wanted;
    granted.cap.max_inline_data = 0;
    if (rdma_create_qp(id_.get(), domain_->handle(), &granted) != 0) {
      return tl::unexpected(refused("a queue pair", errno));
    }
  }
  queue_pair_ = id_->qp;
  if (granted.cap.max_send_wr <= sizes.keys) {
    return tl::unexpected(refused("a send queue long enough for always-invalidate", ENOTSUP));
  }

  const SendQueue::Limits send_limits{granted.cap.max_send_wr - sizes.keys,
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
  events_ = epoll_create1(EPOLL_CLOEXEC);
  if (events_ < 0) return tl::unexpected(Failure{errno, "cannot watch an RDMA connection"});
  for (const int descriptor : {completion_channel_->fd, id_.descriptor()}) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
    if (epoll_ctl(events_, EPOLL_CTL_ADD, descriptor, &event) != 0) {
      return tl::unexpected(Failure{errno, "cannot watch an RDMA connection"});
    }
  }
  if (!arm()) return tl::unexpected(Failure{EIO, failure_});
  return {};
}

void VerbsQueuePair::on_established() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.min_rnr_timer = kRnrTimer;
  // Only a matter of speed, and only when a peer does what it should not.
  ibv_modify_qp(queue_pair_, &attributes, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER);
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
  // From here on the device touches no memory of this connection.
  if (id_.get() != nullptr && id_->qp != nullptr) rdma_destroy_qp(id_.get());
  queue_pair_ = nullptr;
  if (events_ >= 0) ::close(std::exchange(events_, -1));
  if (completions_ != nullptr) ibv_destroy_cq(std::exchange(completions_, nullptr));
  if (completion_channel_ != nullptr) {
    ibv_destroy_comp_channel(std::exchange(completion_channel_, nullptr));
  }
  receives_.reset();
  slots_.reset();
  if (sends_) sends_->close();
  domain_.reset();
}

std::string VerbsQueuePair::statistics() const {
  return std::to_string(arrivals_) + " arrivals, " + std::to_string(sends_->last_posted()) +
         " sends, " + std::to_string(send_completions_) + " completions of sends";
}

bool VerbsQueuePair::fail(std::string why) {
  if (failure_.empty()) failure_ = std::move(why);
  return false;
}

// ---- Windows -----------------------------------------------------------------------------------

tl::expected<void, Failure> VerbsQueuePair::reserve_windows(unsigned count, std::uint32_t bytes) {
  windows_.resize(count);
  if (count == 0) return {};
  slot_size_ = (bytes + kHeaderRoom + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
  auto region = Region::allocate(domain_->handle(), count * slot_size_);
  if (!region) return tl::unexpected(region.error());
  slots_ = std::move(*region);
  return {};
}

MutableBytes VerbsQueuePair::slot(std::uint32_t window) const {
  return slots_->bytes().subspan(window * slot_size_, slot_size_);
}

RemoteMemory VerbsQueuePair::expose(std::uint32_t window, MutableBytes memory) {
  if (ibv_mw* key_window = domain_->key_window(window); key_window != nullptr) {
    // In the order of the queue, so it holds before the message that tells the key.
    bind(key_window, memory, kBindBit, 0);
    return {reinterpret_cast<std::uintptr_t>(memory.data()), key_window->rkey};
  }
  if (window >= windows_.size()) windows_.resize(window + 1);
  Window& w = windows_[window];
  RTRS_ENSURE(!w.exposed);
  const Region* region = domain_->find(memory);
  w = {memory, /*exposed=*/true, /*in_place=*/region != nullptr};
  if (region != nullptr) {
    return {reinterpret_cast<std::uintptr_t>(memory.data()), region->remote_key()};
  }
  RTRS_ENSURE(memory.size() + kHeaderRoom <= slot_size_);
  return {reinterpret_cast<std::uintptr_t>(slot(window).data()), slots_->remote_key()};
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
  request.bind_info.mr = domain_->windowed();
  request.bind_info.addr = reinterpret_cast<std::uintptr_t>(memory.data());
  request.bind_info.length = memory.size();
  request.bind_info.mw_access_flags = memory.empty() ? 0 : IBV_ACCESS_REMOTE_WRITE;
  if (const int error = ibv_bind_mw(queue_pair_, key_window, &request); error != 0) {
    return fail(std::string{"cannot bind a memory window: "} + strerrordesc_np(error));
  }
  return true;
}

void VerbsQueuePair::collect(std::uint32_t window, std::uint32_t bytes) {
  const Window& w = windows_[window];
  RTRS_ENSURE(w.exposed && bytes <= w.target.size());
  if (!w.in_place) std::memcpy(w.target.data(), slot(window).data(), bytes);
}

void VerbsQueuePair::withdraw(std::uint32_t window) { windows_[window].exposed = false; }

ConstBytes VerbsQueuePair::stage(std::uint32_t window, ConstBytes data) {
  if (data.empty()) return {};
  RTRS_ENSURE(data.size() + kHeaderRoom <= slot_size_);
  const MutableBytes copy = slot(window).first(data.size());
  std::memcpy(copy.data(), data.data(), data.size());
  return copy;
}

// ---- Sending -----------------------------------------------------------------------------------

void VerbsQueuePair::attach_data(Post& post, ConstBytes data) const {
  if (data.empty()) return;
  const bool staged = slots_ && slots_->contains(data);
  const Region* region = staged ? slots_.get() : domain_->find(data);
  RTRS_ENSURE(region != nullptr);
  post.data = data.data();
  post.length = static_cast<std::uint32_t>(data.size());
  post.key = region->local_key();
}

Ticket VerbsQueuePair::push(Post post) {
  const bool was_empty = sends_->empty();
  const Ticket ticket = sends_->push(std::move(post));
  if (was_empty && wakeup_ != nullptr) wakeup_(wakeup_context_);
  return ticket;
}

Ticket VerbsQueuePair::write_with_immediate(RemoteMemory to, ConstBytes data, ConstBytes header,
                                            std::uint32_t immediate) {
  Post post = make_post(IBV_WR_RDMA_WRITE_WITH_IMM, to, immediate);
  attach_data(post, data);
  if (!header.empty() && data.empty()) {
    copy_in(post, header);
  } else if (!header.empty()) {
    // One element for both: the header goes into the room behind the staged data.
    RTRS_ENSURE(slots_ && slots_->contains(data) && header.size() <= kHeaderRoom);
    const auto end = static_cast<std::size_t>(data.data() - slots_->bytes().data()) + data.size();
    std::memcpy(slots_->bytes().data() + end, header.data(), header.size());
    post.length += static_cast<std::uint32_t>(header.size());
  }
  return push(std::move(post));
}

Ticket VerbsQueuePair::write(RemoteMemory to, ConstBytes data) {
  Post post = make_post(IBV_WR_RDMA_WRITE, to, 0);
  attach_data(post, data);
  return push(std::move(post));
}

Ticket VerbsQueuePair::send(ConstBytes message) {
  return push_message(make_post(IBV_WR_SEND, {}, 0), message);
}

Ticket VerbsQueuePair::send_with_immediate(ConstBytes message, std::uint32_t immediate) {
  return push_message(make_post(IBV_WR_SEND_WITH_IMM, {}, immediate), message);
}

Ticket VerbsQueuePair::send_with_invalidate(std::uint32_t key) {
  return push(make_post(IBV_WR_SEND_WITH_INV, {}, key));
}

Ticket VerbsQueuePair::push_message(Post post, ConstBytes message) {
  if (message.size() <= post.copy.size()) {
    copy_in(post, message);
    return push(std::move(post));
  }
  // Only handshakes have messages of this size.
  auto region = Region::allocate(domain_->handle(), message.size());
  if (!region) {
    fail(region.error().text);
    return sends_->last_pushed();
  }
  std::memcpy((*region)->bytes().data(), message.data(), message.size());
  post.data = (*region)->bytes().data();
  post.length = static_cast<std::uint32_t>(message.size());
  post.key = (*region)->local_key();
  post.owned = std::move(*region);
  return push(std::move(post));
}

void VerbsQueuePair::post_receives(unsigned count, std::uint32_t bytes) {
  if (!usable()) return;
  receives_->add(count, bytes);
  if (progressing_) return;  // a batch of them goes out with its end
  if (std::string error = receives_->flush(); !error.empty()) fail(std::move(error));
}

void VerbsQueuePair::flush() {
  if (!usable()) return;
  // Receives first: what is sent may be answered at once.
  if (std::string error = receives_->flush(); !error.empty()) {
    fail(std::move(error));
    return;
  }
  if (std::string error = sends_->flush(); !error.empty()) fail(std::move(error));
}

// ---- Receiving ---------------------------------------------------------------------------------

bool VerbsQueuePair::take_event() {
  ibv_cq* queue = nullptr;
  void* context = nullptr;
  if (ibv_get_cq_event(completion_channel_, &queue, &context) != 0) return false;
  ibv_ack_cq_events(queue, 1);
  armed_ = false;
  return true;
}

bool VerbsQueuePair::arm() {
  if (const int error = ibv_req_notify_cq(completions_, /*solicited_only=*/0); error != 0) {
    return fail(std::string{"cannot ask for completion events: "} + strerrordesc_np(error));
  }
  armed_ = true;
  return true;
}

Connection::Status VerbsQueuePair::progress(QueuePairHandler& handler) {
  if (!usable()) return failed_status();
  bool quiet = !armed_ || !take_event();
  progressing_ = true;
  Status status = Status::more;
  for (int seen = 0; seen < kMaxCompletions && usable();) {
    std::array<ibv_wc, kPollBatch> batch;
    const int n = ibv_poll_cq(completions_, kPollBatch, batch.data());
    if (n < 0) fail("the completion queue cannot be read");
    for (int i = 0; i < n && usable(); ++i)
      on_completion(batch[static_cast<std::size_t>(i)], handler);
    flush();
    seen += n;
    quiet = quiet && n == 0;
    if (n != 0) continue;
    if (armed_) {
      status = Status::drained;
      break;
    }
    arm();  // and look again: a completion that came before is not told
  }
  progressing_ = false;
  if (quiet) read_cm_events();
  flush();
  return usable() ? status : failed_status();
}

Connection::Status VerbsQueuePair::failed_status() {
  if (queue_pair_ != nullptr) read_cm_events();
  return closed_by_peer_ ? Status::closed : Status::broken;
}

bool VerbsQueuePair::on_completion(const ibv_wc& completion, QueuePairHandler& handler) {
  if (completion.status != IBV_WC_SUCCESS) {
    if (completion.status == IBV_WC_WR_FLUSH_ERR) read_cm_events();  // which may know better
    return fail(meaning(completion));
  }
  if ((completion.wr_id & ReceiveQueue::kIdBit) != 0) return on_receive(completion, handler);
  if ((completion.wr_id & kBindBit) != 0) {
    const Complaint complaint = handler.on_revoked(static_cast<std::uint32_t>(completion.wr_id));
    return complaint == nullptr || fail(std::string{"protocol violation: "} + complaint);
  }
  ++send_completions_;
  sends_->complete(completion.wr_id);
  return true;
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
    if (receives_) receives_->release(completion.wr_id);
  }
  if (complaint != nullptr) return fail(std::string{"protocol violation: "} + complaint);
  return true;
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
        closed_by_peer_ = failure_.empty();
        fail("the peer closed the connection");
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
