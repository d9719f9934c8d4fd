// SPDX-License-Identifier: BSD-3-Clause
// Two verbs queue pairs that a device connects to each other, driven by one thread.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "rdma/transport/verbs/queue_pair.hpp"
#include "tests/conformance/suite.hpp"

namespace rtrs::conformance {

inline rdma_cm_event_type await_event(const verbs::CmId& id, rdma_cm_id** incoming = nullptr) {
  pollfd descriptor{id.descriptor(), POLLIN, 0};
  if (poll(&descriptor, 1, 10'000) != 1) throw std::runtime_error{"no event of the RDMA CM"};
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(id.channel(), &event) != 0) throw std::runtime_error{"no RDMA CM event"};
  const auto type = event->event;
  if (incoming != nullptr) *incoming = event->id;
  rdma_ack_cm_event(event);
  return type;
}

inline void require(bool ok, const char* what) {
  if (!ok) throw std::runtime_error{std::string{"conformance over verbs: "} + what};
}

template <class T>
T value(tl::expected<T, Failure> result) {
  if (!result) throw std::runtime_error{result.error().text};
  return std::move(*result);
}

/// `kInline`: bytes that may be inlined; 0 takes the way of devices that cannot.
/// The address of the device is told by RNBD_RDMA_ADDRESS.
template <unsigned kInline>
class VerbsFixture {
 public:
  static constexpr bool kKeysEnd = false;

  VerbsFixture() {
    const char* text = std::getenv("RNBD_RDMA_ADDRESS");
    require(text != nullptr, "RNBD_RDMA_ADDRESS is not set");
    auto address = verbs::parse_address(text, 0);
    require(address.has_value(), "RNBD_RDMA_ADDRESS is no address");
    verbs::CmId listener = value(verbs::CmId::create(address->space));
    require(rdma_bind_addr(listener.get(), address->get()) == 0, "bind");
    require(rdma_listen(listener.get(), 1) == 0, "listen");
    auto target = *verbs::parse_address(text, ntohs(rdma_get_src_port(listener.get())));
    connect(listener, target);
    for (Side* side : {&left_, &right_}) {
      auto reserved = side->queue_pair->reserve_windows(8, 1 << 20);
      if (!reserved) throw std::runtime_error{reserved.error().text};
    }
  }

  QueuePair& left() { return *left_.queue_pair; }
  QueuePair& right() { return *right_.queue_pair; }
  Recorder& heard_by_left() { return left_.recorder; }
  Recorder& heard_by_right() { return right_.recorder; }
  bool left_failed() const { return left_.failed; }
  bool right_failed() const { return right_.failed; }
  void close_left() { left_.close(); }
  void share_left(MutableBytes memory) {
    require(left_.queue_pair->register_memory(memory).has_value(), "register");
  }
  Regions& regions_right() { return *right_.domain; }
  void share_right(MutableBytes memory) {
    require(right_.queue_pair->register_memory(memory).has_value(), "register");
  }

  /// A queue pair that knows its way, and has not asked for a connection yet.
  static std::unique_ptr<verbs::VerbsQueuePair> dial(verbs::CmAddress& target) {
    verbs::CmId id = value(verbs::CmId::create(target.space));
    require(rdma_resolve_addr(id.get(), nullptr, target.get(), 5000) == 0, "resolve");
    require(await_event(id) == RDMA_CM_EVENT_ADDR_RESOLVED, "address");
    require(rdma_resolve_route(id.get(), 5000) == 0, "route");
    require(await_event(id) == RDMA_CM_EVENT_ROUTE_RESOLVED, "route");
    return make(std::move(id));
  }

  verbs::VerbsQueuePair& verbs_left() { return *left_.queue_pair; }
  verbs::VerbsQueuePair& verbs_right() { return *right_.queue_pair; }

  void settle() {
    for (int quiet = 0; quiet < 3;) {
      const bool moved = left_.move() | right_.move();
      std::array<pollfd, 2> descriptors{left_.interest(), right_.interest()};
      const bool ready = poll(descriptors.data(), 2, 100) > 0;
      quiet = moved || ready ? 0 : quiet + 1;
    }
  }

 private:
  struct Side {
    std::shared_ptr<verbs::Domain> domain;  ///< null where nobody asks for regions
    std::unique_ptr<verbs::VerbsQueuePair> queue_pair;
    Recorder recorder;
    bool failed = false;

    bool move() {
      if (failed) return false;
      const std::size_t before = recorder.events.size();
      const auto status = queue_pair->progress(recorder);
      if (status == Connection::Status::closed || status == Connection::Status::broken) close();
      return recorder.events.size() != before || status == Connection::Status::more;
    }
    pollfd interest() const { return {failed ? -1 : queue_pair->descriptor(), POLLIN, 0}; }
    void close() {
      queue_pair->close();
      failed = true;
    }
  };

  static std::unique_ptr<verbs::VerbsQueuePair> make(
      verbs::CmId id, std::shared_ptr<verbs::Domain> domain = nullptr) {
    if (domain == nullptr) domain = value(verbs::Domain::create(id->verbs));
    return value(
        verbs::VerbsQueuePair::create(std::move(id), std::move(domain), {256, 700, 16}, kInline));
  }

  void connect(verbs::CmId& listener, verbs::CmAddress& target) {
    left_.queue_pair = dial(target);
    rdma_conn_param parameters{};
    parameters.retry_count = 7;
    parameters.rnr_retry_count = 7;
    parameters.initiator_depth = parameters.responder_resources = QueuePair::kMaxUnconfirmed;
    require(rdma_connect(left_.queue_pair->id().get(), &parameters) == 0, "connect");

    rdma_cm_id* incoming = nullptr;
    require(await_event(listener, &incoming) == RDMA_CM_EVENT_CONNECT_REQUEST, "request");
    verbs::Channel channel = value(verbs::open_channel());
    require(rdma_migrate_id(incoming, channel.get()) == 0, "migrate");
    right_.domain = value(verbs::Domain::create(incoming->verbs));
    right_.queue_pair = make(verbs::CmId{std::move(channel), incoming}, right_.domain);
    require(rdma_accept(right_.queue_pair->id().get(), &parameters) == 0, "accept");
    require(await_event(left_.queue_pair->id()) == RDMA_CM_EVENT_ESTABLISHED, "established");
    require(left_.queue_pair->on_established().has_value(), "timer");
    require(right_.queue_pair->on_established(verbs::VerbsQueuePair::End::server).has_value(),
            "timer");
  }

  Side left_;
  Side right_;
};

using VerbsInlining = VerbsFixture<verbs::VerbsQueuePair::kInline>;
using VerbsWithoutInline = VerbsFixture<0>;

}  // namespace rtrs::conformance
