#include "rdma/transport/verbs/connector.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "rdma/transport/resolve.hpp"
#include "rdma/transport/verbs/queue_pair.hpp"

namespace rtrs::verbs {
namespace {

namespace asio = boost::asio;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
constexpr int kResolveTimeout = 5000;  ///< milliseconds; the whole of connect() has its own
/// Never give up for a peer that has no receive posted; repeat lost packets as often as can be.
/// Source: docs/protocol.md, RDMA parameters.
constexpr std::uint8_t kRetries = 7;
/// Reasons of a reject. Source: InfiniBand specification, connection manager, REJ.
constexpr int kRejectNoListener = 8;
constexpr int kRejectByConsumer = 28;

std::string name_of(const PathAddress& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return (is_ipv6 ? '[' + address.host + ']' : address.host) + ':' + std::to_string(address.port);
}

Failure failure(const PathAddress& address, int error, const std::string& hint = {}) {
  return {error,
          "cannot connect to " + name_of(address) + " over RDMA: " + strerrordesc_np(error) + hint};
}

/// What happened to an id.
struct Event {
  rdma_cm_event_type type{};
  int status = 0;
  std::array<std::byte, sizeof(wire::ConnectResponse)> record{};
  bool has_record = false;
};

std::optional<Event> next_event(const CmId& id) {
  rdma_cm_event* raw = nullptr;
  if (rdma_get_cm_event(id.channel(), &raw) != 0) return std::nullopt;
  Event event{.type = raw->event, .status = raw->status};
  const auto& parameters = raw->param.conn;
  if ((raw->event == RDMA_CM_EVENT_ESTABLISHED || raw->event == RDMA_CM_EVENT_REJECTED) &&
      parameters.private_data != nullptr && parameters.private_data_len >= event.record.size()) {
    std::memcpy(event.record.data(), parameters.private_data, event.record.size());
    event.has_record = true;
  }
  rdma_ack_cm_event(raw);
  return event;
}

/// Waits in the event loop for the channel of an id, without owning it.
class Watch {
 public:
  Watch(asio::any_io_executor executor, int descriptor) : descriptor_{executor, descriptor} {}
  ~Watch() { descriptor_.release(); }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  asio::awaitable<Event> next(const CmId& id) {
    for (;;) {
      if (auto event = next_event(id)) co_return *event;
      co_await descriptor_.async_wait(asio::posix::stream_descriptor::wait_read, kAwait);
    }
  }

 private:
  asio::posix::stream_descriptor descriptor_;
};

/// The server said no, and why.
bool is_refusal(const Event& event) {
  return event.type == RDMA_CM_EVENT_REJECTED && event.status == kRejectByConsumer;
}

int positive(int status) { return status < 0 ? -status : EIO; }

Failure explain(const PathAddress& address, const Event& event) {
  switch (event.type) {
    case RDMA_CM_EVENT_ADDR_ERROR:
    case RDMA_CM_EVENT_ROUTE_ERROR: {
      const int error = positive(event.status);
      return failure(address, error, error == ENODEV ? kNoDeviceHint : " (no route to it)");
    }
    case RDMA_CM_EVENT_REJECTED:
      if (event.status == kRejectNoListener) {
        return failure(address, ECONNREFUSED,
                       " (is rnbd-server, or Linux's rnbd_server, listening there over RDMA?)");
      }
      return failure(address, ECONNREFUSED,
                     " (rejected with reason " + std::to_string(event.status) + ')');
    case RDMA_CM_EVENT_UNREACHABLE:
      return failure(address, EHOSTUNREACH, " (no answer to the connect request)");
    default:
      return failure(address, EIO, std::string{" ("} + rdma_event_str(event.type) + ')');
  }
}

/// The source of the path's first connection, so that all take the same device.
class PathDomain final : public PathContext {
 public:
  std::shared_ptr<Domain> domain;
  CmAddress source;
};

asio::awaitable<tl::expected<CmAddress, Failure>> find(const PathAddress& address) {
  if (auto literal = parse_address(address.host, address.port)) co_return *literal;
  auto found = co_await resolve(address.host);
  if (!found) co_return tl::unexpected(found.error());
  if (found->empty()) co_return tl::unexpected(failure(address, EHOSTUNREACH));
  co_return cm_address(found->front(), address.port);
}

/// The source address to bind, if any: the first connection's, or the user's.
tl::expected<std::optional<CmAddress>, Failure> source_of(const PathAddress& address,
                                                          const PathDomain* path) {
  if (path != nullptr) return path->source;
  if (address.source.empty()) return std::optional<CmAddress>{};
  auto source = parse_address(address.source, 0);
  if (!source) {
    return tl::unexpected(Failure{
        EINVAL, "cannot use source address '" + address.source + "': not a numeric address"});
  }
  return source;
}

/// The path's domain, made with its first connection.
tl::expected<std::shared_ptr<Domain>, Failure> domain_for(rdma_cm_id* id,
                                                          std::shared_ptr<PathContext>& context) {
  if (auto path = std::dynamic_pointer_cast<PathDomain>(context)) {
    if (path->domain->device() == id->verbs) return path->domain;
    return tl::unexpected(Failure{
        EXDEV, "the connections of one path take different RDMA devices: name a source address"});
  }
  auto domain = Domain::create(id->verbs);
  if (!domain) return tl::unexpected(domain.error());
  auto path = std::make_shared<PathDomain>();
  path->domain = *domain;
  path->source = local_address(id);
  context = path;
  return *domain;
}

rdma_conn_param parameters_for(const wire::ConnectRequest& request) {
  rdma_conn_param parameters{};
  parameters.private_data = &request;
  parameters.private_data_len = sizeof(request);
  parameters.retry_count = kRetries;
  parameters.rnr_retry_count = kRetries;
  return parameters;
}

/// The cause is in errno.
tl::unexpected<Failure> refused_at_once(const PathAddress& address, const char* hint = "") {
  const int error = errno;
  return tl::unexpected(failure(address, error, error == ENODEV ? kNoDeviceHint : hint));
}

/// An id that knows its device and the route to the server.
asio::awaitable<tl::expected<CmId, Failure>> find_route(PathAddress address,
                                                        const PathDomain* path) {
  auto target = co_await find(address);
  if (!target) co_return tl::unexpected(target.error());
  auto source = source_of(address, path);
  if (!source) co_return tl::unexpected(source.error());
  auto id = CmId::create(target->space);
  if (!id) co_return tl::unexpected(id.error());
  Watch watch{co_await asio::this_coro::executor, id->descriptor()};
  if (rdma_resolve_addr(id->get(), *source ? (*source)->get() : nullptr, target->get(),
                        kResolveTimeout) != 0) {
    co_return refused_at_once(address, *source ? " (is the source address one of this host?)" : "");
  }
  Event event = co_await watch.next(*id);
  if (event.type != RDMA_CM_EVENT_ADDR_RESOLVED) co_return tl::unexpected(explain(address, event));
  if (rdma_resolve_route(id->get(), kResolveTimeout) != 0) co_return refused_at_once(address);
  event = co_await watch.next(*id);
  if (event.type != RDMA_CM_EVENT_ROUTE_RESOLVED) co_return tl::unexpected(explain(address, event));
  co_return std::move(*id);
}

asio::awaitable<tl::expected<Event, Failure>> connect(PathAddress address,
                                                      VerbsQueuePair& queue_pair,
                                                      wire::ConnectRequest request) {
  Watch watch{co_await asio::this_coro::executor, queue_pair.id().descriptor()};
  rdma_conn_param parameters = parameters_for(request);
  if (rdma_connect(queue_pair.id().get(), &parameters) != 0) co_return refused_at_once(address);
  const Event event = co_await watch.next(queue_pair.id());
  if (event.type != RDMA_CM_EVENT_ESTABLISHED && !is_refusal(event)) {
    co_return tl::unexpected(explain(address, event));
  }
  if (!event.has_record) {
    co_return tl::unexpected(
        Failure{EPROTO, name_of(address) + " does not speak RTRS: it answered without a record"});
  }
  co_return event;
}

}  // namespace

asio::awaitable<tl::expected<Opened, Failure>> open_connection(
    ConnectOptions options, wire::ConnectRequest request, QueueSizes sizes,
    std::shared_ptr<PathContext>& context) {
  const PathAddress& address = options.address;
  auto id = co_await find_route(address, dynamic_cast<const PathDomain*>(context.get()));
  if (!id) co_return tl::unexpected(id.error());
  auto domain = domain_for(id->get(), context);
  if (!domain) co_return tl::unexpected(domain.error());
  auto queue_pair = VerbsQueuePair::create(std::move(*id), std::move(*domain), sizes);
  if (!queue_pair) co_return tl::unexpected(queue_pair.error());
  auto answer = co_await connect(address, **queue_pair, request);
  if (!answer) co_return tl::unexpected(answer.error());
  Opened opened;
  opened.record = answer->record;
  if (!is_refusal(*answer)) (*queue_pair)->on_established();
  opened.connection = std::move(*queue_pair);
  co_return opened;
}

}  // namespace rtrs::verbs
