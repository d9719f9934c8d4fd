// SPDX-License-Identifier: BSD-3-Clause
// Verbs: what the connection manager and the device are told when a connection is made, by our
// client and by our server. Runs in the lab, where there is a device.
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "rdma/transport/verbs/acceptor.hpp"
#include "rdma/transport/verbs/connector.hpp"
#include "tests/conformance/verbs_fixture.hpp"

namespace rtrs::conformance::verbs_setup_test {
namespace {

using namespace std::chrono_literals;
constexpr QueueSizes kSizes{256, 700, 0};
constexpr unsigned kForever = 7;  ///< of a retry count. Source: ibv_modify_qp(3), rnr_retry

std::string device_address() {
  const char* text = std::getenv("RNBD_RDMA_ADDRESS");
  require(text != nullptr, "RNBD_RDMA_ADDRESS is not set");
  return text;
}

wire::ConnectParameters asked() {
  wire::ConnectParameters parameters;
  parameters.cid_count = 2;
  parameters.path_uuid.fill(1);
  parameters.session_uuid.fill(2);
  parameters.first_connection = true;
  return parameters;
}

wire::AcceptParameters granted() {
  wire::AcceptParameters parameters;
  parameters.queue_depth = 16;
  parameters.max_io_size = parameters.max_header_size = 4096;
  return parameters;
}

template <class Record>
bool same(const void* bytes, const Record& record) {
  return std::memcmp(bytes, &record, sizeof(record)) == 0;
}

/// The device's attributes of a connection.
ibv_qp_attr attributes_of(const Connection& connection) {
  const auto& queue_pair = dynamic_cast<const verbs::VerbsQueuePair&>(connection);
  ibv_qp_attr attributes{};
  ibv_qp_init_attr ignored{};
  require(ibv_query_qp(queue_pair.id()->qp, &attributes,
                       IBV_QP_STATE | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MIN_RNR_TIMER |
                           IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC,
                       &ignored) == 0,
          "query");
  return attributes;
}

void is_set_up(const Connection& connection) {
  const ibv_qp_attr attributes = attributes_of(connection);
  CHECK(attributes.qp_state == IBV_QPS_RTS);
  CHECK(attributes.min_rnr_timer == verbs::VerbsQueuePair::kRnrTimer);
  CHECK(attributes.retry_cnt == kForever);
  CHECK(attributes.rnr_retry == kForever);
  CHECK(attributes.max_rd_atomic == 0);
  CHECK(attributes.max_dest_rd_atomic == 0);
}

/// An event of the connection manager with what it says of the other side.
struct Told {
  rdma_cm_event_type type{};
  rdma_cm_id* id = nullptr;
  rdma_conn_param parameters{};
  std::vector<std::byte> private_data;
};

std::optional<Told> next(const verbs::CmId& id) {
  rdma_cm_event* event = nullptr;
  if (rdma_get_cm_event(id.channel(), &event) != 0) return std::nullopt;
  Told told{event->event, event->id, event->param.conn, {}};
  const auto* data = static_cast<const std::byte*>(told.parameters.private_data);
  if (data != nullptr) {
    told.private_data.assign(data, data + told.parameters.private_data_len);
  }
  rdma_ack_cm_event(event);
  return told;
}

/// Our client's side of a connection, under way.
struct Dialling {
  Dialling(Reactor& reactor, std::uint16_t port) {
    ConnectOptions options;
    options.address = {TransportKind::rdma, "", device_address(), port};
    boost::asio::co_spawn(
        reactor.io(),
        [this, options]() -> boost::asio::awaitable<void> {
          result = co_await verbs::open_connection(options, wire::encode(asked()), kSizes, context);
          done = true;
        },
        boost::asio::detached);
  }

  std::shared_ptr<PathContext> context;
  tl::expected<Opened, Failure> result;
  bool done = false;
};

bool run_until(Reactor& reactor, const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!done() && std::chrono::steady_clock::now() < deadline) {
    reactor.io().restart();
    reactor.io().run_for(10ms);
  }
  return done();
}

TEST_CASE("verbs: both ends set the device up as the protocol's document says") {
  Reactor reactor{0};
  auto acceptor = value(verbs::listen(reactor, {TransportKind::rdma, device_address(), 0}, {}));
  std::shared_ptr<PathContext> context;
  std::unique_ptr<Connection> server;
  std::array<std::byte, sizeof(wire::ConnectRequest)> request{};
  acceptor->start([&](std::unique_ptr<Incoming> incoming) {
    request = incoming->record;
    server = value(incoming->open(kSizes, context));
    CHECK(incoming->accept(wire::encode(granted())).has_value());
  });
  const std::string address = acceptor->address();
  const auto port = std::stoul(address.substr(address.rfind(':') + 1));
  Dialling client{reactor, static_cast<std::uint16_t>(port)};
  REQUIRE(run_until(reactor, [&] { return client.done && server != nullptr; }));
  REQUIRE_MESSAGE(client.result.has_value(), (client.result ? "" : client.result.error().text));
  is_set_up(*client.result->connection);
  is_set_up(*server);
  CHECK(same(request.data(), wire::encode(asked())));
  CHECK(same(client.result->record.data(), wire::encode(granted())));
  client.result->connection->close();
  server->close();
}

TEST_CASE("verbs: what our client asks for in its connect request") {
  auto address = verbs::parse_address(device_address(), 0);
  verbs::CmId listener = value(verbs::CmId::create(address->space));
  require(rdma_bind_addr(listener.get(), address->get()) == 0, "bind");
  require(rdma_listen(listener.get(), 1) == 0, "listen");
  Reactor reactor{0};
  Dialling client{reactor, ntohs(rdma_get_src_port(listener.get()))};
  std::optional<Told> told;
  REQUIRE(run_until(reactor, [&] { return told || (told = next(listener)); }));
  REQUIRE(told->type == RDMA_CM_EVENT_CONNECT_REQUEST);
  CHECK(told->parameters.retry_count == kForever);
  CHECK(told->parameters.rnr_retry_count == kForever);
  CHECK(told->parameters.responder_resources == 0);
  CHECK(told->parameters.initiator_depth == 0);
  CHECK(told->parameters.srq == 0);
  REQUIRE(told->private_data.size() == sizeof(wire::ConnectRequest));
  CHECK(same(told->private_data.data(), wire::encode(asked())));
  const wire::ConnectResponse refusal = wire::encode_reject(EBUSY);
  require(rdma_reject(told->id, &refusal, sizeof(refusal)) == 0, "reject");
  rdma_destroy_id(told->id);
  REQUIRE(run_until(reactor, [&] { return client.done; }));
  REQUIRE(client.result.has_value());
  CHECK(same(client.result->record.data(), refusal));
}

TEST_CASE("verbs: what our server answers to a connect request") {
  Reactor reactor{0};
  auto acceptor = value(verbs::listen(reactor, {TransportKind::rdma, device_address(), 0}, {}));
  std::shared_ptr<PathContext> context;
  std::unique_ptr<Connection> server;
  acceptor->start([&](std::unique_ptr<Incoming> incoming) {
    server = value(incoming->open(kSizes, context));
    CHECK(incoming->accept(wire::encode(granted())).has_value());
  });
  const std::string text = acceptor->address();
  const auto port = std::stoul(text.substr(text.rfind(':') + 1));
  auto target = *verbs::parse_address(device_address(), static_cast<std::uint16_t>(port));
  auto client = VerbsInlining::dial(target);
  const wire::ConnectRequest request = wire::encode(asked());
  rdma_conn_param parameters{};
  parameters.private_data = &request;
  parameters.private_data_len = sizeof(request);
  // More than ours wants: it has to say so.
  parameters.responder_resources = 1;
  parameters.initiator_depth = 1;
  parameters.retry_count = parameters.rnr_retry_count = 7;
  require(rdma_connect(client->id().get(), &parameters) == 0, "connect");
  std::optional<Told> told;
  REQUIRE(run_until(reactor, [&] { return told || (told = next(client->id())); }));
  REQUIRE(told->type == RDMA_CM_EVENT_ESTABLISHED);
  CHECK(told->parameters.rnr_retry_count == kForever);
  CHECK(told->parameters.responder_resources == 0);
  CHECK(told->parameters.initiator_depth == 0);
  REQUIRE(told->private_data.size() >= sizeof(wire::ConnectResponse));
  CHECK(same(told->private_data.data(), wire::encode(granted())));
  client->close();
  server->close();
}

TEST_CASE("verbs: a device that refuses the timer costs that connection, and is quoted") {
  VerbsInlining neighbour;
  auto target = *verbs::parse_address(device_address(), 1);
  auto connection = VerbsInlining::dial(target);  // not connected: there is no timer to set
  const auto ready = connection->on_established();
  REQUIRE_FALSE(ready.has_value());
  CHECK(ready.error().error == EINVAL);
  CHECK(ready.error().text.find("receiver-not-ready timer: Invalid argument") != std::string::npos);
  CHECK(connection->failure() == ready.error().text);
  Recorder recorder;
  CHECK(connection->progress(recorder) == Connection::Status::broken);
  neighbour.right().post_receives(1, 0);
  neighbour.left().write_with_immediate({}, {}, {}, 7);
  neighbour.left().flush();
  neighbour.settle();
  CHECK(neighbour.heard_by_right().events.size() == 1);
  CHECK_FALSE(neighbour.left_failed());
}

}  // namespace
}  // namespace rtrs::conformance::verbs_setup_test
