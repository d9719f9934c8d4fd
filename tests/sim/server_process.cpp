#include "tests/sim/server_process.hpp"

#include <cerrno>
#include <utility>

#include "rdma/server.hpp"
#include "tests/sim/search_directory.hpp"

// What the server logic asks of a session, as rdma/transport/ answers it for sockets.
namespace rtrs {
Reactor* reactor_of(const ServerSession&) { return nullptr; }
const std::string& name_of(const ServerSession& session) { return session.name; }
const std::string& peer_of(const ServerSession& session) { return session.peer; }
std::uint32_t features_of(const ServerSession& session) { return session.options().features; }
void* context_of(const ServerSession& session) { return session.context; }
}  // namespace rtrs

namespace sim {
namespace {

constexpr std::uint32_t kMaxHeaderSize = 4096;

rtrs::ServerSessionOptions make_session_options(const Knobs& knobs, Rng& rng) {
  rtrs::ServerSessionOptions options;
  options.queue_depth = knobs.queue_depth;
  options.max_io_size = knobs.max_io_size;
  options.max_header_size = kMaxHeaderSize;
  options.features = knobs.server_extensions ? rtrs::wire::kFeatureUserMessages : 0U;
  options.session_epoch = rng.next();
  options.heartbeat_interval = knobs.heartbeat_interval;
  options.heartbeat_misses = knobs.heartbeat_misses;
  return options;
}

std::uint64_t serial_of(const rtrs::ServerSession& session) { return std::stoull(session.peer); }

void refuse(Wire& wire, int error) {
  const rtrs::wire::ConnectResponse record = rtrs::wire::encode_reject(error);
  const auto bytes = rtrs::wire::bytes_of(record);
  wire.carry(Side::server, {.kind = Packet::Kind::record, .payload = {bytes.begin(), bytes.end()}});
  wire.close(Side::server);
}

}  // namespace

// ---- WatchingHandler ----------------------------------------------------------------------------

void* WatchingHandler::on_session_up(rtrs::ServerSession& session) {
  if (++up_[serial_of(session)] != 1) world_.violate("a session came up twice");
  return next_.on_session_up(session);
}

void WatchingHandler::on_request(rtrs::ServerSession& session, rtrs::ServerRequest& request) {
  world_.note("server", serial_of(session), "request", request.buffer_id, request.data.size(),
              request.is_read ? 1 : 0);
  if (up_[serial_of(session)] != 1) world_.violate("a request came for a session that is down");
  if (session.path().state() != rtrs::ServerPathState::connected) {
    world_.violate("a request came for a path that is not connected");
  }
  next_.on_request(session, request);
}

void WatchingHandler::on_session_down(rtrs::ServerSession& session) {
  const std::uint64_t serial = serial_of(session);
  world_.note("server", serial, "session is down");
  if (session.executing() != 0) {
    return world_.violate("session " + std::to_string(serial) + " went down while " +
                          std::to_string(session.executing()) + " of its requests executed");
  }
  up_[serial] = 2;
  next_.on_session_down(session);
  checker_.session_gone(serial);
}

// ---- ServerProcess ------------------------------------------------------------------------------

ServerProcess::ServerProcess(World& world, const Knobs& knobs, std::vector<Disk>& disks,
                             Checker& checker, NodeId node)
    : world_{world},
      knobs_{knobs},
      disks_{disks},
      checker_{checker},
      node_{node},
      session_options_{make_session_options(knobs, world.rng())},
      admission_{{.max_sessions = knobs.max_sessions,
                  .max_connections_per_path = 128,
                  .session_memory = session_options_.chunk_memory(),
                  .memory_limit = session_options_.chunk_memory() * knobs.max_sessions}},
      storage_{world, knobs.storage, disks, checker, node},
      catalogue_{catalogue_options()},
      block_server_{catalogue_, {knobs.queue_depth, knobs.max_io_size}, surroundings()},
      handler_{world, checker, block_server_},
      scope_{world, node} {
  if (knobs.search_path) {
    const auto found = catalogue_.set_search_path(search_directory());
    if (!found) world.violate("the catalogue refuses its search path: " + found.error().text);
    return;
  }
  for (const Disk& disk : disks) {
    rnbd::ExportSpecification specification;
    specification.name = disk.name();
    specification.storage = "sim:" + std::to_string(disk.number());
    specification.read_only = disk.knobs().export_read_only;
    const auto added = catalogue_.add(specification);
    if (!added) world.violate("the catalogue refuses " + disk.name() + ": " + added.error().text);
  }
}

rnbd::CatalogueOptions ServerProcess::catalogue_options() {
  rnbd::CatalogueOptions options;
  options.open = [this](const std::string& specification, const rnbd::BackendOptions& how)
      -> tl::expected<std::unique_ptr<rnbd::Backend>, rtrs::Failure> {
    const bool is_export = specification.starts_with("sim:");
    const auto number = is_export ? static_cast<unsigned>(std::stoul(specification.substr(4)))
                                  : disk_of_file(specification);
    return storage_.open(number, !is_export && how.read_only);
  };
  return options;
}

rnbd::Surroundings ServerProcess::surroundings() {
  rnbd::Surroundings surroundings;
  surroundings.later = [this](rtrs::Reactor*, std::function<void()> work) {
    scope_.soon(std::move(work));
  };
  surroundings.offload = [this](rtrs::Reactor*, std::function<void()> work,
                                std::function<void()> then) {
    const std::uint64_t job = next_job_++;
    offloaded_[job] = [work = std::move(work), then = std::move(then)] {
      if (work) work();
      if (then) then();
    };
    scope_.after(world_.rng().delay(1us, 1ms), [this, job] { run_offloaded(job); });
  };
  return surroundings;
}

void ServerProcess::run_offloaded(std::uint64_t job) {
  auto node = offloaded_.extract(job);
  if (!node.empty()) node.mapped()();
}

void ServerProcess::calm() {
  calm_ = true;
  storage_.calm();
}

void ServerProcess::accept(std::shared_ptr<Wire> wire, rtrs::ConstBytes record, NodeId client) {
  const auto parameters = rtrs::wire::decode_connect_request(record);
  if (!parameters) return world_.violate("the server cannot read a connect request of the client");
  const auto decision = admission_.admit(*parameters);
  world_.note("server", wire->session(), "judges", parameters->cid,
              static_cast<std::uint64_t>(decision.error));
  if (decision.error != 0) {
    // ECONNRESET: the path closes already, and the client does not know it yet.
    if (decision.error != ENOMEM && decision.error != ECONNRESET) {
      world_.violate(std::string{"the server refused a connection: "} + decision.why);
    }
    return refuse(*wire, decision.error);
  }
  ServerHost& host = decision.created
                         ? create_host(decision.session, *parameters, wire->session(), client)
                         : *hosts_.at(decision.session);
  host.add(parameters->cid, std::move(wire));
}

ServerHost& ServerProcess::create_host(SessionId id,
                                       const rtrs::wire::ConnectParameters& parameters,
                                       std::uint64_t serial, NodeId client) {
  rtrs::ServerSessionOptions options = session_options_;
  options.features &= parameters.extension.features;
  HostEnvironment environment{
      .world = world_,
      .knobs = knobs_,
      .server = node_,
      .client = client,
      .claim_name = [this, id](std::string_view name) { return admission_.claim_name(id, name); },
      .have_memory = [this] { return calm_ || !world_.rng().chance(knobs_.faults.no_memory); },
      .on_closing = [this, id] { admission_.close(id); },
      .on_gone =
          [this, id] {
            scope_.soon([this, id] {
              hosts_.erase(id);
              admission_.remove(id);
            });
          }};
  auto host = std::make_unique<ServerHost>(std::move(environment), options, handler_,
                                           parameters.cid_count, serial);
  return *(hosts_[id] = std::move(host));
}

void ServerProcess::drain() {
  for (auto& [id, host] : hosts_) host->drain();
}

void ServerProcess::kill() {
  for (auto& [id, host] : hosts_) host->close("the server is killed");
  storage_.kill();
  while (!offloaded_.empty()) run_offloaded(offloaded_.begin()->first);
}

std::string ServerProcess::leftovers() {
  if (!hosts_.empty()) return std::to_string(hosts_.size()) + " sessions";
  if (admission_.sessions() != 0) return "sessions that admission still counts";
  if (block_server_.sessions() != 0) return "RNBD sessions without a transport session";
  if (storage_.running() != 0) return "requests at the storage";
  return stuck_writers();
}

/// With all sessions gone, whoever asks may write.
std::string ServerProcess::stuck_writers() {
  for (const Disk& disk : disks_) {
    if (!disk.writable()) continue;
    const auto mode = rnbd::wire::AccessMode::read_write;
    const bool possible = knobs_.search_path
                              ? catalogue_.open_file("auditor", disk.name(), mode).has_value()
                              : catalogue_.open_named(disk.name(), mode).has_value();
    if (!possible) return "somebody who writes to " + disk.name();
  }
  return "";
}

}  // namespace sim
