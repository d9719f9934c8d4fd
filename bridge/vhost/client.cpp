// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/client.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "rdma/descriptor_reserve.hpp"

namespace rnbd::vhost {
namespace {

/// Other files may block for ever in a write, whatever poll(2) says of them.
bool is_eventfd(int descriptor) {
  constexpr std::string_view kEventfd = "anon_inode:[eventfd]";
  std::array<char, 64> target;
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
  const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
  return size > 0 && std::string_view{target.data(), static_cast<std::size_t>(size)} == kEventfd;
}

/// A call is a write, which must not wait for a counter that is full. The flag is the file's, and
/// so the front-end's, too; qemu's own back-ends set it as well.
void never_block(int descriptor) {
  ::fcntl(descriptor, F_SETFL, ::fcntl(descriptor, F_GETFL) | O_NONBLOCK);
}

/// Bytes of buffers of a client, which its loops share out.
constexpr std::size_t kMostMemory = std::size_t{256} * 1024 * 1024;
/// The patience with the rings that stop after one whose requests were given up.
constexpr std::chrono::milliseconds kNoPatience{100};

constexpr const char* kNoDescriptors =
    "the last descriptors are kept for others (raise LimitNOFILE)";

/// Loops for the queues. Where a flush is for one connection only, all queues share that.
std::size_t count_loops(Disk& disk) {
  if (!disk.geometry().flush_covers_all) return 1;
  return std::max(disk.lane_source()->lanes(), 1U);
}

}  // namespace

Client::Client(rtrs::OwnedFd socket, nbd::Lease disk, ClientSurroundings surroundings)
    : socket_{std::move(socket)},
      disk_{std::move(disk)},
      surroundings_{std::move(surroundings)},
      offer_{offer_of(disk_->geometry(), disk_->read_only())},
      of_loops_{.disk = *disk_,
                .offer = offer_,
                .calls = surroundings_.calls,
                .log = surroundings_.log,
                .make_call = surroundings_.make_call,
                .most_memory = kMostMemory / count_loops(*disk_),
                .changed = [this] { surroundings_.wake.wake(); }},
      loops_(count_loops(*disk_)),
      rings_(kMaxQueues) {}

Client::~Client() { loops_.clear(); }

// ---- Messages come in ---------------------------------------------------------------------------

/// Messages wait while a ring stops, as their client does.
short Client::events() const { return stopping_ ? POLLRDHUP : POLLIN | POLLRDHUP; }

bool Client::on_socket() {
  if (stopping_) return false;  // it has left meanwhile
  while (!stopping_) {
    if (received_ == wanted()) {
      if (header_) {
        const auto message = decode_message(
            *header_, ConstBytes{input_}.subspan(sizeof(MessageHeader), header_->size),
            descriptors_.size());
        if (!message) return break_off(std::string{"a message: "} + to_string(message.error()));
        received_ = 0;
        header_.reset();
        const bool goes_on = try_to_carry_out(*message);
        descriptors_.clear();
        if (!goes_on) return false;
      } else {
        const auto header = decode_header(ConstBytes{input_}.first(sizeof(MessageHeader)));
        if (!header) return break_off(std::string{"a message: "} + to_string(header.error()));
        header_ = *header;
      }
      continue;
    }
    const std::size_t before = received_;
    if (!receive()) return false;
    if (received_ == before) return true;
  }
  return true;
}

std::size_t Client::wanted() const { return sizeof(MessageHeader) + (header_ ? header_->size : 0); }

/// False: the client has left.
bool Client::receive() {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxRegions * sizeof(int))> control;
  iovec room{input_.data() + received_, wanted() - received_};
  msghdr head{};
  head.msg_iov = &room;
  head.msg_iovlen = 1;
  head.msg_control = control.data();
  head.msg_controllen = control.size();
  const ssize_t size = ::recvmsg(socket_.get(), &head, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (!take_descriptors(head)) return false;
  if (size == 0) return false;
  received_ += static_cast<std::size_t>(size);
  return true;
}

/// Descriptors are owned afterwards, also those of a message that is refused. False: it is.
bool Client::take_descriptors(msghdr& head) {
  for (cmsghdr* each = CMSG_FIRSTHDR(&head); each != nullptr; each = CMSG_NXTHDR(&head, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(each) + i * sizeof(int), sizeof(int));
      descriptors_.emplace_back(descriptor);
    }
  }
  if ((head.msg_flags & MSG_CTRUNC) != 0)
    return break_off("a message came with too many descriptors, or there are no more of them");
  if (descriptors_.size() > kMaxRegions)
    return break_off("too many descriptors came with a message");
  const auto is_one_of_the_last = [](const auto& each) { return rtrs::is_reserved(each.get()); };
  if (std::ranges::any_of(descriptors_, is_one_of_the_last)) return break_off(kNoDescriptors);
  return true;
}

bool Client::break_off(const std::string& why) {
  why_ = why;
  return false;
}

/// A client that does not read the answers is left.
bool Client::answer(const Answer& answer) {
  const ConstBytes bytes = answer.bytes();
  const ssize_t sent =
      ::send(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return sent == static_cast<ssize_t>(bytes.size()) || break_off("it takes no answers");
}

bool Client::acknowledge(const Message& message, bool done) {
  if (!message.needs_reply || (protocol_features_ & kProtocolReplyAck) == 0) return true;
  return answer(Answer::bits(message.type, done ? 0 : 1));
}

// ---- Messages are carried out -------------------------------------------------------------------

/// The system may have no thread, descriptor or memory for its queues.
bool Client::try_to_carry_out(const Message& message) {
  try {
    return carry_out(message);
  } catch (const std::exception& exception) {
    return break_off(std::string{"there is no room for its queues: "} + exception.what());
  }
}

bool Client::carry_out(const Message& message) {
  switch (message.type) {
    case MessageType::get_features:
      return answer(Answer::bits(message.type, offer_.features));
    case MessageType::get_protocol_features:
      return answer(Answer::bits(message.type, kProtocolMq | kProtocolReplyAck | kProtocolConfig));
    case MessageType::get_queue_num:
      return answer(Answer::bits(message.type, kMaxQueues));
    case MessageType::get_config:
      return answer(config(std::get<ConfigRange>(message.payload)));
    case MessageType::get_vring_base:
      return begin_stop(std::get<RingState>(message.payload).index);
    case MessageType::set_config:  // nothing of it can be changed
      return acknowledge(message, false);
    case MessageType::set_owner:
    case MessageType::reset_owner:
      break;
    case MessageType::set_features:
      if (!set_features(std::get<Bits>(message.payload).value)) return false;
      break;
    case MessageType::set_protocol_features:
      protocol_features_ = std::get<Bits>(message.payload).value;
      break;
    case MessageType::set_mem_table:
      if (!set_memory(std::get<MemoryTable>(message.payload))) return false;
      break;
    case MessageType::set_vring_addr: {
      const auto addresses = std::get<RingAddresses>(message.payload);
      ring(addresses.index).settings.addresses = addresses;
      break;
    }
    case MessageType::set_vring_num:
    case MessageType::set_vring_base:
    case MessageType::set_vring_enable:
      if (!set_number(message.type, std::get<RingState>(message.payload))) return false;
      break;
    case MessageType::set_vring_kick:
    case MessageType::set_vring_call:
    case MessageType::set_vring_err:
      if (!set_descriptor(message.type, std::get<RingDescriptor>(message.payload))) return false;
      break;
  }
  return acknowledge(message, true);
}

bool Client::set_features(std::uint64_t features) {
  if ((features & ~offer_.features) != 0)
    return break_off("it takes features that were not offered");
  features_ = features;
  return true;
}

bool Client::set_memory(const MemoryTable& table) {
  auto memory = GuestMemory::map(table, std::move(descriptors_));
  descriptors_.clear();
  if (!memory) return break_off(memory.error());
  memory_ = *std::move(memory);
  for (const auto& loop : loops_) {
    if (loop) loop->perform([&] { loop->set_memory(memory_); });
  }
  return true;
}

/// A running ring keeps its size and its place in it.
bool Client::set_number(MessageType type, RingState state) {
  Ring& ring = this->ring(state.index);
  if (type == MessageType::set_vring_num) {
    if (state.number == 0 || state.number > kMaxRing)
      return break_off("a ring has no possible size");
    ring.settings.size = state.number;
  } else if (type == MessageType::set_vring_base) {
    if (state.number > UINT16_MAX) return break_off("a ring begins at no possible place");
    ring.settings.base = static_cast<std::uint16_t>(state.number);
  } else {
    ring.enabled = state.number != 0;
    Loop& loop = loop_of(state.index);
    loop.perform([&] { loop.queue(state.index).enable(enabled(ring)); });
  }
  return true;
}

bool Client::set_descriptor(MessageType type, RingDescriptor ring) {
  rtrs::OwnedFd descriptor;
  if (ring.present) descriptor = std::move(descriptors_.front());
  if (type == MessageType::set_vring_kick) {
    if (!ring.present) return break_off("it does not kick, and rings are not polled here");
    return start(ring.index, std::move(descriptor));
  }
  if (ring.present) {
    if (!is_eventfd(descriptor.get())) return break_off("it wants to be called by no eventfd");
    never_block(descriptor.get());
  }
  Loop& loop = loop_of(ring.index);
  loop.perform([&] {
    Queue& queue = loop.queue(ring.index);
    if (type == MessageType::set_vring_call) {
      queue.set_call(std::move(descriptor));
    } else {
      queue.set_error(std::move(descriptor));
    }
  });
  return true;
}

// ---- Rings start and stop -----------------------------------------------------------------------

Client::Ring& Client::ring(unsigned index) { return rings_.at(index); }

/// Clients without protocol features do not enable their rings.
bool Client::enabled(const Ring& ring) const {
  return ring.enabled || (features_ & kFeatureProtocol) == 0;
}

Loop& Client::loop_of(unsigned index) {
  const std::size_t lane = index % loops_.size();
  std::unique_ptr<Loop>& loop = loops_[lane];
  if (!loop) {
    auto meter = surroundings_.meters.meter(disk_->name(), &loop);
    loop = std::make_unique<Loop>(static_cast<unsigned>(lane), of_loops_, std::move(meter));
    if (memory_) loop->perform([&] { loop->set_memory(memory_); });
  }
  return *loop;
}

bool Client::start(unsigned index, rtrs::OwnedFd kick) {
  Ring& ring = this->ring(index);
  Loop& loop = loop_of(index);
  std::string wrong;
  loop.perform([&] {
    Queue& queue = loop.queue(index);
    if (!ring.started) {
      ring.settings.features = features_;
      queue.enable(enabled(ring));
      wrong = queue.start(ring.settings, memory_);
    }
    if (wrong.empty() && !loop.set_kick(index, std::move(kick)))
      wrong = "a kick comes from no eventfd";
  });
  if (!wrong.empty()) return break_off(wrong);
  ring.started = true;
  stop_patience_ = kStopPatience;
  return true;
}

bool Client::begin_stop(unsigned index) {
  stopping_ = index;
  stop_by_ = std::chrono::steady_clock::now() + stop_patience_;
  if (!ring(index).started) return end_stop();
  Loop& loop = loop_of(index);
  loop.perform([&] {
    loop.queue(index).stop();
    loop.tell_when_idle([index](const Queue& queue) { return queue.index() == index; });
  });
  return true;
}

int Client::patience() const {
  if (!stopping_ || stop_by_ == Time::max()) return -1;
  const auto left = stop_by_ - std::chrono::steady_clock::now();
  const auto whole = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<std::int64_t>(whole, 0, INT_MAX));
}

/// Front-ends do nothing else while they wait for the answer. qemu's whole machine stands still.
void Client::on_clock() {
  if (patience() != 0) return;
  stop_by_ = Time::max();
  stop_patience_ = kNoPatience;
  if (surroundings_.log) {
    surroundings_.log(rtrs::LogLevel::warning,
                      "the server is silent: queue " + std::to_string(*stopping_) +
                          " of the guest stops without the answers to its requests");
  }
  Loop& loop = loop_of(*stopping_);
  loop.perform([&] { loop.queue(*stopping_).abandon(); });
}

/// Answers GET_VRING_BASE.
bool Client::end_stop() {
  const unsigned index = *std::exchange(stopping_, std::nullopt);
  Ring& ring = this->ring(index);
  if (std::exchange(ring.started, false)) {
    Loop& loop = loop_of(index);
    loop.perform([&] {
      loop.set_kick(index, {});
      ring.settings.base = loop.queue(index).base();
      loop.queue(index).leave_ring();
    });
  }
  return answer(Answer::ring_state(MessageType::get_vring_base, {index, ring.settings.base}));
}

bool Client::on_wake() {
  for (const auto& loop : loops_) {
    if (loop && loop->has_lost_memory())
      return break_off("a file of its memory has become shorter, or has no room");
  }
  if (!stopping_ || !loop_of(*stopping_).is_drained()) return true;
  return end_stop() && on_socket();
}

Answer Client::config(ConfigRange range) const {
  std::array<std::byte, kMaxConfig> content{};
  std::memcpy(content.data(), &offer_.config, sizeof(offer_.config));
  return Answer::config(range, content);
}

// ---- The end ------------------------------------------------------------------------------------

void Client::drain() {
  for (const auto& loop : loops_) {
    if (!loop) continue;
    loop->perform([&] {
      for (auto& [index, queue] : loop->queues()) queue.stop();
      loop->tell_when_idle([](const Queue&) { return true; });
    });
  }
}

void Client::abandon() {
  for (const auto& loop : loops_) {
    if (!loop) continue;
    loop->perform([&] {
      for (auto& [index, queue] : loop->queues()) queue.abandon();
      loop->tell_when_idle([](const Queue&) { return true; });
    });
  }
}

void Client::leave_rings() {
  for (const auto& loop : loops_) {
    if (!loop) continue;
    loop->perform([&] {
      for (auto& [index, queue] : loop->queues()) queue.leave_ring();
    });
  }
}

bool Client::is_idle() const {
  return std::ranges::all_of(loops_, [](const auto& loop) { return !loop || loop->is_drained(); });
}

}  // namespace rnbd::vhost
