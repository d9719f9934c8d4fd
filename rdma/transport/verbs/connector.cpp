// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/verbs/connector.hpp"

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rdma/transport/resolve.hpp"
#include "rdma/transport/verbs/queue_pair.hpp"

namespace rtrs::verbs {
namespace {

namespace asio = boost::asio;
constexpr int kResolveTimeout = 5000;  ///< milliseconds; the whole of connect() has its own
/// Never give up for a peer that has no receive posted; repeat lost packets as often as can be.
/// Source: docs/protocol.md, RDMA parameters.
constexpr std::uint8_t kRetries = 7;
/// Reasons of a reject. Source: InfiniBand specification, connection manager, REJ.
constexpr int kRejectNoListener = 8;
constexpr int kRejectByConsumer = 28;

Failure failure(const PathAddress& address, int error, const std::string& hint = {}) {
  return {error, "cannot connect to " + name_of(address) + " over RDMA: " + describe(error) + hint};
}

/// An event of an id.
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
      // The wait throws if the attempt was given up, and its id goes with it.
      co_await descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                                      asio::use_awaitable);
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
        return failure(address, ECONNREFUSED, " (is a server listening there over RDMA?)");
      }
      return failure(address, ECONNREFUSED,
                     " (rejected with reason " + std::to_string(event.status) + ')');
    case RDMA_CM_EVENT_UNREACHABLE:
      return failure(address, EHOSTUNREACH, " (no answer to the connect request)");
    default:
      return failure(address, EIO, std::string{" ("} + rdma_event_str(event.type) + ')');
  }
}

/// Both ends of the path's first connection, so that all take the same devices.
class PathDomain final : public PathContext {
 public:
  std::shared_ptr<Domain> domain;
  CmAddress source;
  CmAddress target;
};

/// The addresses of the server's name, best first.
std::vector<CmAddress> targets_of(const ConnectOptions& options) {
  const PathAddress& address = options.address;
  if (auto literal = parse_address(address.host, address.port)) return {*literal};
  std::vector<CmAddress> result;
  for (const auto& one : options.addresses) result.push_back(cm_address(one, address.port));
  return result;
}

/// The source address to bind, if any.
tl::expected<std::optional<CmAddress>, Failure> source_of(const PathAddress& address) {
  if (address.source.empty()) return std::optional<CmAddress>{};
  auto source = parse_address(address.source, 0);
  if (!source) {
    return tl::unexpected(Failure{
        EINVAL, "cannot use source address '" + address.source + "': not a numeric address"});
  }
  return source;
}

/// The path's, or for its first connection a new one.
tl::expected<std::shared_ptr<Domain>, Failure> domain_for(rdma_cm_id* id,
                                                          std::shared_ptr<Domain> of_path,
                                                          const ConnectOptions& options) {
  if (of_path == nullptr) return Domain::create(id->verbs, options.log, *options.words);
  if (of_path->device() == id->verbs) return of_path;
  return tl::unexpected(Failure{
      EXDEV, "the connections of one path take different RDMA devices: name a source address"});
}

rdma_conn_param parameters_for(const wire::ConnectRequest& request, ibv_context* device) {
  rdma_conn_param parameters{};
  parameters.private_data = &request;
  parameters.private_data_len = sizeof(request);
  parameters.retry_count = kRetries;
  parameters.rnr_retry_count = kRetries;
  if (request.kind == static_cast<std::uint8_t>(wire::PathKind::memory)) {
    parameters.initiator_depth = reads_at_once(device);
  }
  return parameters;
}

/// The cause is in errno.
tl::unexpected<Failure> refused_at_once(const PathAddress& address, const char* hint = "") {
  const int error = errno;
  return tl::unexpected(failure(address, error, error == ENODEV ? kNoDeviceHint : hint));
}

/// From where to where a connection is tried.
struct Ends {
  std::optional<CmAddress> source;
  CmAddress target;
};

/// The id knows its device and the route to the server then.
asio::awaitable<tl::expected<void, Failure>> find_route(const PathAddress& address, Ends& ends,
                                                        const CmId& id) {
  Watch watch{co_await asio::this_coro::executor, id.descriptor()};
  if (rdma_resolve_addr(id.get(), ends.source ? ends.source->get() : nullptr, ends.target.get(),
                        kResolveTimeout) != 0) {
    co_return refused_at_once(address,
                              ends.source ? " (is the source address one of this host?)" : "");
  }
  Event event = co_await watch.next(id);
  if (event.type != RDMA_CM_EVENT_ADDR_RESOLVED) co_return tl::unexpected(explain(address, event));
  if (rdma_resolve_route(id.get(), kResolveTimeout) != 0) co_return refused_at_once(address);
  event = co_await watch.next(id);
  if (event.type != RDMA_CM_EVENT_ROUTE_RESOLVED) co_return tl::unexpected(explain(address, event));
  co_return tl::expected<void, Failure>{};
}

asio::awaitable<tl::expected<Event, Failure>> connect(const PathAddress& address,
                                                      VerbsQueuePair& queue_pair,
                                                      wire::ConnectRequest request) {
  Watch watch{co_await asio::this_coro::executor, queue_pair.id().descriptor()};
  rdma_conn_param parameters = parameters_for(request, queue_pair.id()->verbs);
  if (rdma_connect(queue_pair.id().get(), &parameters) != 0) co_return refused_at_once(address);
  const Event event = co_await watch.next(queue_pair.id());
  if (event.type != RDMA_CM_EVENT_ESTABLISHED && !is_refusal(event)) {
    co_return tl::unexpected(explain(address, event));
  }
  if (!event.has_record) {
    co_return tl::unexpected(
        Failure{EPROTO, name_of(address) + " does not speak RTRS: it answered without a record"});
  }
  if (is_refusal(event)) co_return event;
  if (auto ready = queue_pair.on_established(); !ready) co_return tl::unexpected(ready.error());
  co_return event;
}

/// A server's refusal is no error; its answer is in the event.
struct Connected {
  std::unique_ptr<VerbsQueuePair> queue_pair;
  std::shared_ptr<Domain> domain;  ///< below its queue pair: it goes first
  Event answer;
};

/// `of_path` is null for the path's first connection.
asio::awaitable<tl::expected<Connected, Failure>> connect_to(const ConnectOptions& options,
                                                             Ends ends,
                                                             const wire::ConnectRequest& request,
                                                             const QueueSizes& sizes,
                                                             std::shared_ptr<Domain> of_path) {
  // However this ends, the domain goes before its id does: with the last id of a device that was
  // removed the device is closed. So it is the last of these, and nobody else here has it.
  auto id = CmId::create(ends.target.space);
  std::unique_ptr<VerbsQueuePair> queue_pair;
  std::shared_ptr<Domain> domain = std::move(of_path);
  if (!id) co_return tl::unexpected(id.error());
  const auto found = co_await find_route(options.address, ends, *id);
  if (!found) co_return tl::unexpected(found.error());
  {
    auto fitting = domain_for(id->get(), std::move(domain), options);
    if (!fitting) co_return tl::unexpected(fitting.error());
    domain = std::move(*fitting);
    auto made = VerbsQueuePair::create(std::move(*id), domain, sizes);
    if (!made) co_return tl::unexpected(made.error());
    queue_pair = std::move(*made);
  }
  const auto answer = co_await connect(options.address, *queue_pair, request);
  if (!answer) co_return tl::unexpected(answer.error());
  co_return Connected{std::move(queue_pair), std::move(domain), *answer};
}

/// All pairs of addresses that the path may take.
tl::expected<std::vector<Ends>, Failure> ends_of(const ConnectOptions& options,
                                                 const PathDomain* path) {
  if (path != nullptr) return std::vector{Ends{path->source, path->target}};
  auto source = source_of(options.address);
  if (!source) return tl::unexpected(source.error());
  std::vector<Ends> result;
  for (const CmAddress& target : targets_of(options)) {
    const bool fits = !*source || (*source)->storage.ss_family == target.storage.ss_family;
    if (fits) result.push_back({*source, target});
  }
  if (result.empty()) return tl::unexpected(failure(options.address, EAFNOSUPPORT));
  return result;
}

/// All that is taken from a path: the caller may give up before this ends, and then nothing may
/// hold on to the path.
struct Start {
  tl::expected<std::vector<Ends>, Failure> ends;
  std::shared_ptr<Domain> domain;  ///< null for the path's first connection
};

Start start_of(const ConnectOptions& options, const std::shared_ptr<PathContext>& context) {
  const auto* path = dynamic_cast<const PathDomain*>(context.get());
  return {ends_of(options, path), path != nullptr ? path->domain : nullptr};
}

}  // namespace

asio::awaitable<tl::expected<Opened, Failure>> open_connection(
    ConnectOptions options, wire::ConnectRequest request, QueueSizes sizes,
    std::shared_ptr<PathContext>& context) {
  Start start = start_of(options, context);
  if (!start.ends) co_return tl::unexpected(start.ends.error());
  const bool is_first = start.domain == nullptr;
  tl::expected<Connected, Failure> connected;
  for (const Ends& tried : *start.ends) {
    // The first connection of a path alone has a choice of ends, so it is moved once.
    connected = co_await connect_to(options, tried, request, sizes, std::move(start.domain));
    if (!connected) continue;
    Opened opened;
    opened.record = connected->answer.record;
    if (is_first) {
      auto first = std::make_shared<PathDomain>();
      first->domain = std::move(connected->domain);
      first->source = local_address(connected->queue_pair->id().get());
      first->target = tried.target;
      context = std::move(first);
    }
    opened.connection = std::move(connected->queue_pair);
    co_return opened;
  }
  co_return tl::unexpected(std::move(connected.error()));
}

}  // namespace rtrs::verbs
