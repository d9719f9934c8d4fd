// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/acceptor.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "rdma/transport/alarm.hpp"
#include "rdma/transport/verbs/queue_pair.hpp"
#include "rdma/wire/endian.hpp"
#include "rdma/wire/handshake.hpp"

namespace rtrs::verbs {
namespace {

constexpr int kBacklog = 64;
/// Time between two attempts to listen at an address after its device was removed.
constexpr std::chrono::seconds kAgain{1};
constexpr std::uint8_t kReceiverRetries =
    7;  ///< never give up for a peer that has no receive posted

class VerbsIncoming final : public Incoming {
 public:
  /// `reads`: of the client's, that may be under way at once.
  VerbsIncoming(Channel listener, rdma_cm_id* id, std::uint8_t reads,
                const AcceptorOptions& options)
      : listener_{std::move(listener)},
        arrived_{id},
        reads_{reads},
        log_{options.log},
        words_{options.words} {}
  VerbsIncoming(const VerbsIncoming&) = delete;
  VerbsIncoming& operator=(const VerbsIncoming&) = delete;
  ~VerbsIncoming() override {
    if (arrived_ != nullptr) rdma_destroy_id(arrived_);  // turns the client away
  }

  void reject(const wire::ConnectResponse& answer) override {
    rdma_cm_id* id = queue_pair_ != nullptr ? queue_pair_->id().get() : this->id();
    if (id != nullptr) rdma_reject(id, &answer, sizeof(answer));
  }

  tl::expected<std::unique_ptr<Connection>, Failure> open(
      const QueueSizes& sizes, std::shared_ptr<PathContext>& context) override;

  tl::expected<void, Failure> accept(const wire::ConnectResponse& answer) override {
    rdma_conn_param parameters{};
    parameters.private_data = &answer;
    parameters.private_data_len = sizeof(answer);
    parameters.rnr_retry_count = kReceiverRetries;
    // Nobody reads over a path for requests, whatever its client asks for.
    const auto asked = wire::decode_connect_request(wire::bytes_of(record));
    if (asked && asked->kind == wire::PathKind::memory) {
      parameters.responder_resources = std::min(reads_, reads_at_once(queue_pair_->id()->verbs));
    }
    if (rdma_accept(queue_pair_->id().get(), &parameters) != 0) {
      return tl::unexpected(broke_while_accepted(errno));
    }
    return queue_pair_->on_established(VerbsQueuePair::End::server);
  }

 private:
  tl::expected<std::shared_ptr<Domain>, Failure> domain_for(std::shared_ptr<PathContext>& context);
  rdma_cm_id* id() const { return arrived_ != nullptr ? arrived_ : moved_.get(); }

  Channel listener_;     ///< which may have been closed meanwhile
  rdma_cm_id* arrived_;  ///< on the listener's channel; null once it has moved
  std::uint8_t reads_;
  CmId moved_;  ///< for its queue pair; kept if there can be none
  Log log_;     ///< for events of the device
  const OptionWords* words_;
  VerbsQueuePair* queue_pair_ = nullptr;
};

tl::expected<std::shared_ptr<Domain>, Failure> VerbsIncoming::domain_for(
    std::shared_ptr<PathContext>& context) {
  if (context == nullptr) {
    auto domain = Domain::create(arrived_->verbs, log_, *words_);
    if (!domain) return tl::unexpected(domain.error());
    context = std::move(*domain);
  }
  auto domain = std::dynamic_pointer_cast<Domain>(context);
  if (domain == nullptr || domain->device() != arrived_->verbs) {
    return tl::unexpected(Failure{EXDEV, "a connection came in on another device than its path"});
  }
  return domain;
}

tl::expected<std::unique_ptr<Connection>, Failure> VerbsIncoming::open(
    const QueueSizes& sizes, std::shared_ptr<PathContext>& context) {
  auto channel = open_channel();
  if (!channel) return tl::unexpected(channel.error());
  auto domain = domain_for(context);
  if (!domain) return tl::unexpected(domain.error());
  if (rdma_migrate_id(arrived_, channel->get()) != 0) {
    return tl::unexpected(
        Failure{errno, std::string{"cannot move a connection to its reactor: "} + describe(errno)});
  }
  moved_ = CmId{std::move(*channel), std::exchange(arrived_, nullptr)};
  auto queue_pair = VerbsQueuePair::create(std::move(moved_), std::move(*domain), sizes);
  if (!queue_pair) return tl::unexpected(queue_pair.error());
  queue_pair_ = queue_pair->get();
  return std::move(*queue_pair);
}

Failure cannot_listen(const ListenAddress& address, int error) {
  std::string text = "cannot listen on rdma:" + address.host + ':' + std::to_string(address.port) +
                     ": " + describe(error);
  if (error == EADDRINUSE) {
    text +=
        " (another program, or Linux's rnbd_server, uses this port over RDMA: see 'rdma "
        "resource show cm_id')";
  } else if (error == ENODEV || error == EADDRNOTAVAIL) {
    text += kNoDeviceHint;
  }
  return {error, std::move(text)};
}

tl::expected<CmId, Failure> bind_and_listen(const ListenAddress& address,
                                            const AcceptorOptions& options) {
  const bool everywhere = address.host.empty() || address.host == "*";
  auto where = parse_address(everywhere ? "::" : address.host, address.port);
  if (!where) {
    return tl::unexpected(Failure{EINVAL, "cannot listen on rdma:" + address.host +
                                              ": not a numeric address (for all addresses use *)"});
  }
  auto id = CmId::create(where->space);
  if (!id) return tl::unexpected(id.error());
  if (everywhere || address.host.find(':') != std::string::npos) {
    // As for TCP, independent of the system's default: an IPv6 address means IPv6, * means both.
    int only = everywhere ? 0 : 1;
    if (rdma_set_option(id->get(), RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &only, sizeof(only)) !=
        0) {
      return tl::unexpected(cannot_listen(address, errno));
    }
  }
  if (rdma_bind_addr(id->get(), where->get()) != 0) {
    return tl::unexpected(cannot_listen(address, errno));
  }
  // One address belongs to one device. Of several, each client's is looked at when it comes.
  if (options.need_keys && (*id)->verbs != nullptr) {
    if (auto able = can_reserve_keys((*id)->verbs); !able) return tl::unexpected(able.error());
  }
  if (rdma_listen(id->get(), kBacklog) != 0) return tl::unexpected(cannot_listen(address, errno));
  return std::move(*id);
}

class VerbsAcceptor final : public Acceptor {
 public:
  VerbsAcceptor(Reactor& reactor, CmId id, ListenAddress asked, AcceptorOptions options)
      : id_{std::move(id)},
        descriptor_{reactor.io(), id_.descriptor()},
        address_{"rdma:" + text_of(rdma_get_local_addr(id_.get()))},
        asked_{std::move(asked)},
        options_{std::move(options)},
        again_{reactor.alarms()} {
    asked_.port = ntohs(rdma_get_src_port(id_.get()));  // 0 was any
  }
  ~VerbsAcceptor() override { close(); }
  VerbsAcceptor(const VerbsAcceptor&) = delete;
  VerbsAcceptor& operator=(const VerbsAcceptor&) = delete;

  void start(Welcome welcome) override {
    welcome_ = std::move(welcome);
    wait();
  }
  void close() override {
    again_.cancel();
    let_go();
  }
  std::string address() const override { return address_; }

 private:
  void wait();
  void read_events();
  void on_request(rdma_cm_event* event);
  void let_go();
  void listen_again();

  CmId id_;
  boost::asio::posix::stream_descriptor descriptor_;
  std::string address_;
  ListenAddress asked_;
  AcceptorOptions options_;
  Alarm again_;
  Welcome welcome_;
};

void VerbsAcceptor::wait() {
  descriptor_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                         [this](boost::system::error_code error) {
                           if (error || id_.get() == nullptr) return;
                           read_events();
                           if (id_.get() != nullptr) wait();
                         });
}

void VerbsAcceptor::read_events() {
  rdma_cm_event* event = nullptr;
  bool removed = false;
  while (rdma_get_cm_event(id_.channel(), &event) == 0) {
    if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
      on_request(event);
      continue;
    }
    removed = removed || (event->event == RDMA_CM_EVENT_DEVICE_REMOVAL && event->id == id_.get());
    // Other events are of a connection that its session has not taken over yet; its deadline ends
    // it.
    rdma_ack_cm_event(event);
  }
  if (!removed) return;
  if (options_.log)
    options_.log(LogLevel::warning, address_ +
                                        ": the RDMA device is being removed; the server "
                                        "listens there again when the address has one");
  let_go();
  listen_again();
}

void VerbsAcceptor::let_go() {
  if (descriptor_.is_open()) descriptor_.release();
  id_.reset();
}

/// The old id is good for nothing any more, and keeps the device from going.
void VerbsAcceptor::listen_again() {
  again_.set(kAgain, [this] {
    auto id = bind_and_listen(asked_, options_);
    if (!id) return listen_again();
    id_ = std::move(*id);
    descriptor_.assign(id_.descriptor());
    if (options_.log) options_.log(LogLevel::info, address_ + ": listening again");
    wait();
  });
}

void VerbsAcceptor::on_request(rdma_cm_event* event) {
  const std::uint8_t reads =
      std::min<std::uint8_t>(event->param.conn.responder_resources, QueuePair::kMaxUnconfirmed);
  auto incoming = std::make_unique<VerbsIncoming>(id_.shared_channel(), event->id, reads, options_);
  incoming->may_be_linux = true;
  incoming->peer = text_of_client(event->id);
  const auto& parameters = event->param.conn;
  if (parameters.private_data != nullptr) {
    std::memcpy(incoming->record.data(), parameters.private_data,
                std::min<std::size_t>(parameters.private_data_len, incoming->record.size()));
  }
  rdma_ack_cm_event(event);  // before the id moves: that waits for its events
  welcome_(std::move(incoming));
}

}  // namespace

tl::expected<std::unique_ptr<Acceptor>, Failure> listen(Reactor& reactor,
                                                        const ListenAddress& address,
                                                        const AcceptorOptions& options) {
  auto id = bind_and_listen(address, options);
  if (!id) return tl::unexpected(id.error());
  return std::make_unique<VerbsAcceptor>(reactor, std::move(*id), address, options);
}

}  // namespace rtrs::verbs
