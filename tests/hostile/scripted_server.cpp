// SPDX-License-Identifier: BSD-3-Clause
#include "tests/hostile/scripted_server.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <stdexcept>

#include "tests/hostile/raw_session.hpp"

namespace rtrs::hostile {
namespace {

constexpr unsigned kReceives = 64;

void demand(bool ok, const char* what) {
  if (!ok) throw std::runtime_error{std::string{"scripted server: "} + what};
}

}  // namespace

wire::AcceptParameters usual_accept() {
  wire::AcceptParameters accept;
  accept.queue_depth = 16;
  accept.max_io_size = accept.max_header_size = 4096;
  return accept;
}

std::vector<std::byte> usual_info(const RawConnection& connection,
                                  const wire::AcceptParameters& accept) {
  const RemoteMemory memory = connection.exposed();
  const std::array descriptors{
      wire::Descriptor{memory.address, memory.key, accept.queue_depth * accept.chunk_size()}};
  return wire::encode_info_response(descriptors);
}

ScriptedServer::ScriptedServer(std::function<void(ScriptedServer&)> script)
    : stop_{eventfd(0, EFD_CLOEXEC)} {
  auto address = verbs::parse_address(target().host, 0);
  demand(address.has_value(), "not an address");
  auto listener = verbs::CmId::create(address->space);
  demand(listener.has_value(), "no listener");
  listener_ = std::move(*listener);
  demand(rdma_bind_addr(listener_.get(), address->get()) == 0, "bind");
  demand(rdma_listen(listener_.get(), 8) == 0, "listen");
  port = ntohs(rdma_get_src_port(listener_.get()));
  thread_ = std::thread{[this, script = std::move(script)] { script(*this); }};
}

ScriptedServer::~ScriptedServer() {
  eventfd_write(stop_, 1);
  thread_.join();
  ::close(stop_);
}

ClientOptions ScriptedServer::options() const {
  static int number = 0;
  ClientOptions options;
  options.session_name = "victim-" + std::to_string(++number);
  options.paths = {{TransportKind::rdma, "", target().host, port}};
  options.lanes = 1;
  options.connect_timeout = std::chrono::seconds{5};
  return options;
}

std::unique_ptr<RawConnection> ScriptedServer::next() {
  for (;;) {
    std::array<pollfd, 2> descriptors{{{listener_.descriptor(), POLLIN, 0}, {stop_, POLLIN, 0}}};
    poll(descriptors.data(), descriptors.size(), -1);
    rdma_cm_event* event = nullptr;
    if (descriptors[1].revents != 0) return nullptr;
    if (rdma_get_cm_event(listener_.channel(), &event) != 0) continue;
    rdma_cm_id* id = event->event == RDMA_CM_EVENT_CONNECT_REQUEST ? event->id : nullptr;
    rdma_ack_cm_event(event);
    if (id == nullptr) continue;
    auto channel = verbs::open_channel();
    demand(channel.has_value() && rdma_migrate_id(id, channel->get()) == 0, "migrate");
    auto connection =
        std::make_unique<RawConnection>(verbs::CmId{std::move(*channel), id}, domain_);
    domain_ = connection->domain();
    connection->receive(kReceives);
    return connection;
  }
}

ScriptedServer::Connections ScriptedServer::accept_all(const wire::ConnectResponse& record) {
  Connections all;
  for (int i = 0; i < 2; ++i) {
    auto connection = next();
    if (connection == nullptr) return {};
    connection->accept(wire::bytes_of(record));
    all.push_back(std::move(connection));
  }
  return all;
}

ScriptedServer::Connections ScriptedServer::up(const wire::AcceptParameters& accept) {
  auto all = accept_all(wire::encode(accept));
  if (all.empty() || !all[0]->next()) return {};  // the info request
  all[0]->post({.opcode = IBV_WR_SEND, .payload = usual_info(*all[0], accept)});
  return all;
}

void ScriptedServer::until_closed(Connections& connections) {
  for (auto& connection : connections) connection->is_closed();
}

}  // namespace rtrs::hostile
