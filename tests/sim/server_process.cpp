// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/server_process.hpp"

#include <cerrno>
#include <utility>

#include "rdma/server.hpp"
#include "tests/sim/proofs.hpp"
#include "tests/sim/search_directory.hpp"

// The others are in session_answers.cpp.
namespace rtrs {
bool recall_memory(ServerSession& session) { return session.recall(); }
}  // namespace rtrs

namespace sim {
namespace {

constexpr std::uint32_t kMaxHeaderSize = 4096;

rtrs::ServerSessionOptions make_session_options(const Knobs& knobs, std::uint16_t queue_depth,
                                                const ServerFace& face) {
  rtrs::ServerSessionOptions options;
  options.queue_depth = queue_depth;
  options.max_io_size = knobs.max_io_size;
  options.max_header_size = kMaxHeaderSize;
  if (knobs.server_extensions) {
    options.features = rtrs::wire::kFeatureUserMessages | rtrs::wire::kFeatureExactlyOnce |
                       (knobs.access_notices ? rtrs::wire::kFeatureAccessNotice : 0U) |
                       (knobs.proofs ? rtrs::wire::kFeatureAuthentication : 0U) |
                       (knobs.races ? rtrs::wire::kFeatureRaces : 0U) | rnbd::wire::kFeatureClaims;
  }
  options.volatile_epoch = face.volatile_epoch;
  options.server_id = face.id;
  return options;
}

rnbd::BlockServerLimits block_server_limits(const Knobs& knobs, std::uint16_t queue_depth) {
  const bool own = knobs.server_style == ServerStyle::own;
  return {queue_depth, knobs.max_io_size,
          own ? rnbd::DeviceIds::never_twice : rnbd::DeviceIds::lowest_free, knobs.open_timeout};
}

/// Of a path that borrows; 0: none does.
std::uint64_t floor_of(const Knobs& knobs, const rtrs::ServerSessionOptions& options) {
  constexpr std::uint64_t kOfChunk =
      std::uint64_t{rtrs::PathLoan::kOwnPages} * rtrs::PathLoan::kPage;
  return knobs.floor_requests == 0 ? 0 : options.queue_depth * kOfChunk + knobs.own_memory();
}

/// Without memory_paths, for all that may be there, with generations that are about to go.
std::uint64_t memory_limit(const Knobs& knobs, const rtrs::ServerSessionOptions& options) {
  const std::uint64_t floor = floor_of(knobs, options);
  const std::uint64_t all = options.chunk_memory();
  if (floor == 0) {
    return all * (knobs.memory_paths > 0 ? knobs.memory_paths : knobs.max_sessions * 3);
  }
  std::uint64_t sum = knobs.memory_paths * floor;
  if (knobs.memory_paths == 0) {
    for (const ClientKnobs& client : knobs.clients)
      sum += client.exactly_once && !client.resends_at_once ? (client.paths + 1) * floor
                                                            : 2 * client.paths * all;
  }
  return (sum + knobs.spare_memory) * 8 / 7;  // an eighth is not lent
}

void refuse(Wire& wire, int error) {
  const rtrs::wire::ConnectResponse record = rtrs::wire::encode_reject(error);
  const auto bytes = rtrs::wire::bytes_of(record);
  wire.carry(Side::server, {.kind = Packet::Kind::record, .payload = {bytes.begin(), bytes.end()}});
  wire.close(Side::server);
}

}  // namespace

/// The work of other threads, and the time.
class ServerProcess::Threads final : public rnbd::Services {
 public:
  explicit Threads(ServerProcess& process) : its_{process} {}

  bool has_event_loop() const override { return true; }
  void later(rtrs::Reactor*, Work work) const override {
    const std::uint64_t job = its_.next_job_++;
    its_.offloaded_[job] = std::move(work);
    its_.scope_.soon([&its = its_, job] { its.run(its.offloaded_, job); });
  }
  std::shared_ptr<void> after(rtrs::Reactor*, Duration time, Work work) const override {
    if (time > Duration::zero()) {
      const std::uint64_t job = its_.next_job_++;
      its_.timed_[job] = std::move(work);
      its_.scope_.after(time, [&its = its_, job] { its.run(its.timed_, job); });
    }
    return std::make_shared<int>();  // what comes too late is told apart by the server itself
  }
  void offload(rtrs::Reactor*, Work work, Work then) const override {
    if (its_.may_hang()) return its_.hang(std::move(work), std::move(then));
    const std::uint64_t job = its_.next_job_++;
    its_.offloaded_[job] = [work = std::move(work), then = std::move(then)] {
      if (work) work();
      if (then) then();
    };
    its_.scope_.after(its_.world_.rng().delay(1us, 1ms),
                      [&its = its_, job] { its.run(its.offloaded_, job); });
  }

 private:
  ServerProcess& its_;
};

ServerProcess::ServerProcess(World& world, const Knobs& knobs, std::uint16_t queue_depth,
                             Disks& disks, const std::vector<unsigned>& exports, Checker& checker,
                             const ServerFace& face,
                             std::shared_ptr<rnbd::WriterStore> reservations)
    : world_{world},
      knobs_{knobs},
      disks_{disks},
      exports_{exports},
      checker_{checker},
      node_{face.node},
      clone_{face.foreign && knobs.clone},
      keys_{make_keys(world, face.foreign && !knobs.clone)},
      session_options_{make_session_options(knobs, queue_depth, face)},
      account_{memory_limit(knobs, session_options_)},
      admission_{{.max_sessions = knobs.max_sessions,
                  .max_connections_per_path = 128,
                  .max_half_open = knobs.max_half_open,
                  .path_memory = session_options_.chunk_memory(),
                  .path_floor = floor_of(knobs, session_options_),
                  .memory_limit = account_.limit(),
                  .features = session_options_.features,
                  .account = &account_}},
      storage_{world, knobs.storage, disks, checker, face.node},
      catalogue_{catalogue_options(std::move(reservations))},
      services_{make_services(knobs)},
      block_server_{catalogue_, block_server_limits(knobs, queue_depth), *services_},
      handler_{world, checker, open_chunks_, block_server_, face.foreign && !clone_},
      scope_{world, face.node} {
  if (knobs.search_path) {
    const auto found = catalogue_.files().set(search_directory());
    if (!found) world.violate("the catalogue refuses its search path: " + found.error().text);
    return;
  }
  for (const unsigned number : exports_) {
    const Disk& disk = disks_[number];
    rnbd::ExportSpecification specification;
    specification.name = disk.name();
    specification.storage = "sim:" + std::to_string(disk.number());
    specification.read_only = disk.knobs().export_read_only;
    const auto added = catalogue_.add(specification);
    if (!added) world.violate("the catalogue refuses " + disk.name() + ": " + added.error().text);
  }
}

rnbd::CatalogueOptions ServerProcess::catalogue_options(
    std::shared_ptr<rnbd::WriterStore> reservations) {
  rnbd::CatalogueOptions options;
  options.reservations = std::move(reservations);
  options.open = [this](const std::string& specification, const rnbd::BackendOptions& how)
      -> tl::expected<std::unique_ptr<rnbd::Backend>, rtrs::Failure> {
    const bool is_export = specification.starts_with("sim:");
    const auto number = is_export ? static_cast<unsigned>(std::stoul(specification.substr(4)))
                                  : exports_.at(disk_of_file(specification));
    return storage_.open(number, !is_export && how.read_only);
  };
  return options;
}

/// Linux's server carries out a message of a connection before it looks at the next one.
std::unique_ptr<rnbd::Services> ServerProcess::make_services(const Knobs& knobs) {
  if (knobs.server_style == ServerStyle::own) return std::make_unique<Threads>(*this);
  return std::make_unique<rnbd::Services>();
}

/// A clone must not refuse the device by which its client knows it.
bool ServerProcess::may_hang() {
  const unsigned often = knobs_.storage.hang_open;
  return often > 0 && !calm_ && !clone_ && world_.rng().chance(often);
}

/// Before anything is done, or when all is done but the end; for a while, or until calm().
void ServerProcess::hang(std::function<void()> work, std::function<void()> then) {
  Rng& rng = world_.rng();
  world_.note("server", 0, "hangs in opening or closing something");
  if (work && rng.chance(500)) std::exchange(work, nullptr)();
  const std::uint64_t job = next_job_++;
  offloaded_[job] = [work = std::move(work), then = std::move(then)] {
    if (work) work();
    if (then) then();
  };
  if (rng.chance(300)) return;
  scope_.after(rng.delay(1ms, knobs_.open_timeout * 3), [this, job] { run(offloaded_, job); });
}

void ServerProcess::run(Jobs& jobs, std::uint64_t job) {
  auto node = jobs.extract(job);
  if (!node.empty()) node.mapped()();
}

void ServerProcess::calm() {
  calm_ = true;
  storage_.calm();
  for (const auto& [job, work] : offloaded_) {
    scope_.soon([this, number = job] { run(offloaded_, number); });
  }
}

void ServerProcess::accept(std::shared_ptr<Wire> wire, rtrs::ConstBytes record, NodeId client) {
  const auto parameters = rtrs::wire::decode_connect_request(record);
  if (!parameters) return world_.violate("the server cannot read a connect request of the client");
  // A clone makes no session for a client that may go on there.
  const bool makes_session = parameters->cid == 0 && parameters->first_connection;
  if (clone_ && makes_session && !wire->is_welcome()) {
    return wire->close(Side::server);
  }
  // Toward a session without epochs a stranger with its uuids could pass for the server's memory of
  // it, and only a key keeps such strangers out.
  if ((parameters->extension.features & rtrs::wire::kFeatureExactlyOnce) != 0) {
    seen_ = Seen{*parameters, wire->session(), client};
  }
  judge(std::move(wire), *parameters, client, "client " + std::to_string(client));
}

void ServerProcess::knock() {
  Rng& rng = world_.rng();
  for (std::uint64_t i = rng.between(1, 12); i > 0 && !world_.broken(); --i) {
    Seen stranger = seen_.value_or(Seen{});
    rtrs::wire::ConnectParameters& hello = stranger.parameters;
    hello.cid = 0;
    hello.first_connection = true;
    if (!seen_ || rng.chance(500)) {
      stranger.serial = 0;
      hello.cid_count = static_cast<std::uint16_t>(rng.between(1, 3));
      for (auto* uuid : {&hello.session_uuid, &hello.path_uuid}) {
        for (auto& byte : *uuid) byte = static_cast<std::uint8_t>(rng.between(1, 255));
      }
    }
    hello.reconnect_count = static_cast<std::uint16_t>(hello.reconnect_count + rng.below(3));
    world_.note("stranger", stranger.serial, "says hello");
    judge(std::make_shared<Wire>(world_, knobs_.network, stranger.serial, hello.cid, nullptr),
          hello, stranger.client, "strangers");
  }
}

/// Those count who have finished their handshake, once, and nobody else.
void ServerProcess::check_counts() {
  const auto compare = [&](const char* what, std::uint64_t is, std::uint64_t must) {
    if (is == must) return;
    world_.violate("admission counts " + std::to_string(is) + what + " where finished handshakes " +
                   "make " + std::to_string(must));
  };
  compare(" sessions", admission_.sessions(), ledger_.sessions());
  compare(" bytes", admission_.memory(), ledger_.memory());
}

/// Nothing is lent beyond the limit, and what is lent comes back.
void ServerProcess::check_loans() {
  std::uint64_t sum = 0;
  for (const auto& [id, host] : hosts_) {
    sum += host->lent();
    host->check_loans();
  }
  if (sum > std::exchange(lent_, sum) && ledger_.memory() + sum > account_.limit())
    world_.violate("memory is lent beyond the limit: " + std::to_string(sum) + " bytes, beside " +
                   std::to_string(ledger_.memory()) + " of " + std::to_string(account_.limit()));
  if (sum != account_.lent())
    world_.violate("the account says that " + std::to_string(account_.lent()) +
                   " bytes are lent, and paths have " + std::to_string(sum));
}

/// Without generations, all of it: storage may wait for what lies unread.
std::uint64_t ServerProcess::memory_of_path(const rtrs::ServerSessionOptions& session) const {
  const std::uint64_t floor = floor_of(knobs_, session);
  const std::uint64_t all = session.chunk_memory();
  return floor == 0 || !session.exactly_once() ? all : std::min(floor, all);
}

/// No client is refused for the sake of further paths. While storage hangs, closing one would be of
/// no use.
void ServerProcess::check_starved(const rtrs::wire::ConnectParameters& parameters, bool proves,
                                  bool inaccessible) {
  if (ledger_.kept() > 0) return;
  bool others_have_several = false;
  for (const auto& [id, host] : hosts_) {
    const bool own = host->options().uuid == parameters.session_uuid;
    const auto& path = parameters.path_uuid;
    if (own && (inaccessible ? host->serves(path) : host->carrying(path) > 0)) return;
    const bool once = (host->options().features & rtrs::wire::kFeatureExactlyOnce) != 0;
    const bool may_take = proves || !host->has_user();
    others_have_several |= !own && once && may_take && host->carrying() > 1;
  }
  if (others_have_several)
    world_.violate("a client has no path, and is refused while another one has several");
}

void ServerProcess::judge(std::shared_ptr<Wire> wire,
                          const rtrs::wire::ConnectParameters& parameters, NodeId client,
                          const std::string& from) {
  const bool proves =
      knobs_.proofs && (parameters.extension.features & rtrs::wire::kFeatureAuthentication) != 0;
  const auto considered =
      admission_.consider(parameters, proves ? std::nullopt : std::optional<std::string_view>{""},
                          from, wire->path() % kListeners, knobs_.network.stream);
  if (considered.new_path) door_.enter(considered.path, from);
  turn_away_soon(considered.makes_room);
  check_counts();
  world_.note("server", wire->session(), "judges", parameters.cid,
              static_cast<std::uint64_t>(considered.error));
  if (considered.error == ENOMEM && considered.why == rtrs::kProgramWords.large_path)
    check_starved(parameters, proves,
                  access_[wire->path() % kListeners] == rtrs::wire::PathAccess::inaccessible);
  if (considered.error != 0) {
    // ECONNRESET: the path closes already, and the client does not know it yet. ENXIO: another path
    // of a session that is over.
    const bool forgotten =
        considered.error == ENXIO && (!parameters.first_connection || parameters.cid != 0);
    if (considered.error != ENOMEM && considered.error != ECONNRESET && !forgotten) {
      world_.violate(std::string{"the server refused a connection: "} + considered.why);
    }
    return refuse(*wire, considered.error);
  }
  ServerHost& host = considered.new_session
                         ? create_host(considered.session, parameters, wire->session(), client)
                         : *hosts_.at(considered.session);
  const unsigned listener = wire->path() % kListeners;
  const bool borrows = considered.memory < session_options_.chunk_memory();
  const rtrs::ServerPathOptions options{.cid_count = parameters.cid_count,
                                        .uuid = parameters.path_uuid,
                                        .new_keys = knobs_.new_keys,
                                        .access = access_[listener],
                                        .entrance = listener,
                                        .heartbeat_interval = knobs_.heartbeat_interval,
                                        .heartbeat_misses = knobs_.heartbeat_misses,
                                        .keys = proves ? keys_ : nullptr,
                                        .account = borrows ? &account_ : nullptr,
                                        .floor = considered.memory};
  host.add(considered, parameters, options, std::move(wire));
}

void ServerProcess::set_access(unsigned listener, rtrs::wire::PathAccess access) {
  access_[listener] = access;
  admission_.set_access(listener, access);
  for (auto& [id, host] : hosts_) host->set_access(listener, access);
}

ServerHost& ServerProcess::create_host(SessionId id,
                                       const rtrs::wire::ConnectParameters& parameters,
                                       std::uint64_t serial, NodeId client) {
  rtrs::ServerSessionOptions options = session_options_;
  options.extension = parameters.extension.present;
  options.features &= parameters.extension.features;
  options.uuid = parameters.session_uuid;
  options.session_epoch = world_.rng().next();
  HostEnvironment environment{
      .world = world_,
      .knobs = knobs_,
      .server = node_,
      .client = client,
      .admit = [this, id](
                   PathId path, std::string_view name,
                   std::optional<std::string_view> user) { return admit(id, path, name, user); },
      .is_turned_away = [this](PathId path) { return door_.is_turned_away(path); },
      .have_memory = [this] { return calm_ || !world_.rng().chance(knobs_.faults.no_memory); },
      .open_chunks = open_chunks_,
      .on_path_closing =
          [this, id](PathId path, bool over) {
            admission_.close_path(id, path);
            door_.leave(path);
            if (over) admission_.close(id);
          },
      .on_path_shrunk =
          [this, id](PathId path, std::uint64_t held) {
            admission_.shrink_path(id, path, held);
            ledger_.shrink(path, held);
            check_counts();
          },
      .on_path_silent = [this, id](PathId path,
                                   bool silent) { admission_.set_silent(id, path, silent); },
      .check_loans = [this] { check_loans(); },
      .on_path_gone = [this, id](PathId path) { forget_path_soon(id, path); },
      .on_idle = [this, id] { admission_.set_idle(id); },
      .on_gone = [this, id] { forget_soon(id); }};
  auto host = std::make_unique<ServerHost>(std::move(environment), options, handler_, serial);
  return *(hosts_[id] = std::move(host));
}

rtrs::Admission::Admitted ServerProcess::admit(SessionId id, PathId path, std::string_view name,
                                               std::optional<std::string_view> user) {
  const auto admitted = admission_.admit(id, path, name, user);
  if (admitted.why_not == nullptr) {
    ledger_.admit(id, path, memory_of_path(hosts_.at(id)->options()));
    if (admitted.replaces != 0) ledger_.spare(admitted.replaces);
    door_.leave(path);
  }
  for (const auto spared : admitted.spares) spare_soon(spared, {id, path});
  check_counts();
  if (admitted.ends != 0) {
    scope_.soon([this, idle = admitted.ends] {
      if (const auto found = hosts_.find(idle); found != hosts_.end()) found->second->end_if_idle();
    });
  }
  return admitted;
}

void ServerProcess::spare_soon(rtrs::Admission::Place spared, rtrs::Admission::Place taker) {
  const ServerHost& loser = *hosts_.at(spared.session);
  const ServerHost& winner = *hosts_.at(taker.session);
  const bool own = spared.session == taker.session;
  if (loser.carrying() > 0 && !loser.carries_beside(spared.path) && !own)
    world_.violate("the only path of a session went for the sake of another client");
  if (!loser.serves_beside(spared.path) && !own)
    world_.violate("a session was left without any path for the sake of another client");
  if (winner.may_carry(taker.path) ? winner.carries_beside(taker.path)
                                   : winner.serves_beside(taker.path))
    world_.violate("a path of a session went for the sake of one that has another");
  if (own && loser.may_carry(spared.path))
    world_.violate("a path that carries requests went for another one of its own session");
  ledger_.spare(spared.path);
  scope_.soon([this, spared] {
    const auto found = hosts_.find(spared.session);
    if (found != hosts_.end()) found->second->spare(spared.path);
  });
}

void ServerProcess::turn_away_soon(rtrs::Admission::Place half_open) {
  if (half_open.path == 0) return;
  if (const std::size_t more = door_.missing_to_most(half_open.path); more > 0) {
    world_.violate("a host made room at the door of which fewer wait than of another one, by " +
                   std::to_string(more));
  }
  door_.turn_away(half_open.path);
  scope_.soon([this, half_open] {
    const auto found = hosts_.find(half_open.session);
    if (found != hosts_.end()) found->second->turn_away(half_open.path);
  });
}

void ServerProcess::forget_path_soon(SessionId id, PathId path) {
  scope_.soon([this, id, path] {
    admission_.remove_path(id, path);
    ledger_.remove_path(path);
    door_.leave(path);
    check_counts();
    if (const auto found = hosts_.find(id); found != hosts_.end()) found->second->forget(path);
  });
}

void ServerProcess::forget_soon(SessionId id) {
  admission_.close(id);
  scope_.soon([this, id] {
    hosts_.erase(id);
    admission_.remove(id);
    ledger_.remove(id);
    check_counts();
  });
}

void ServerProcess::drain() {
  for (auto& [id, host] : hosts_) host->drain();
}

void ServerProcess::kill() {
  catalogue_.reservations().end();
  for (auto& [id, host] : hosts_) host->close("the server is killed");
  storage_.kill();
  while (!offloaded_.empty() || !timed_.empty()) {
    Jobs& jobs = offloaded_.empty() ? timed_ : offloaded_;
    run(jobs, jobs.begin()->first);
  }
}

std::string ServerProcess::leftovers() {
  if (!hosts_.empty()) return std::to_string(hosts_.size()) + " sessions";
  if (!admission_.empty()) return "sessions that admission still counts";
  if (block_server_.sessions() != 0) return "RNBD sessions without a transport session";
  if (storage_.running() != 0) return "requests at the storage";
  return stuck_writers();
}

/// With all sessions gone, whoever asks may write.
std::string ServerProcess::stuck_writers() {
  for (const unsigned number : exports_) {
    const Disk& disk = disks_[number];
    if (!disk.writable()) continue;
    const auto mode = rnbd::wire::AccessMode::read_write;
    const bool possible = knobs_.search_path
                              ? catalogue_.files().open("auditor", disk.name(), mode).has_value()
                              : catalogue_.open_named(disk.name(), mode).has_value();
    if (!possible) return "somebody who writes to " + disk.name();
  }
  return "";
}

}  // namespace sim
