// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/daemon.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <thread>

#include "bridge/control/control_socket.hpp"
#include "bridge/control/late_opening.hpp"
#include "bridge/control/unix_socket.hpp"
#include "bridge/daemon/logging.hpp"
#include "bridge/daemon/metrics_common.hpp"
#include "bridge/daemon/metrics_server.hpp"
#include "bridge/daemon/notify.hpp"
#include "bridge/daemon/process.hpp"
#include "bridge/daemon/server/annex.hpp"
#include "bridge/daemon/server/blocking_pool.hpp"
#include "bridge/daemon/server/check.hpp"
#include "bridge/daemon/server/control.hpp"
#include "bridge/daemon/server/evict.hpp"
#include "bridge/daemon/server/late_exports.hpp"
#include "bridge/daemon/server/metrics.hpp"
#include "bridge/daemon/server/open_exports.hpp"
#include "bridge/daemon/server/path_watch.hpp"
#include "bridge/daemon/server/reload.hpp"
#include "bridge/daemon/server/served_exports.hpp"
#include "bridge/daemon/server/server_place.hpp"
#include "bridge/daemon/server/state_directory.hpp"
#include "bridge/daemon/server/storage_watch.hpp"
#include "bridge/daemon/shutdown.hpp"
#include "bridge/server/block_server.hpp"
#include "bridge/server/reservations_beside.hpp"
#include "rdma/client_log.hpp"
#include "rdma/memlock.hpp"
#include "rdma/server.hpp"

namespace rnbd {
namespace {

/// For running requests; less than kLeaveWithin by the time that closing everything takes.
constexpr std::chrono::milliseconds kDrain{3000};

/// Of conditions that may get better by themselves, and of wrong settings.
constexpr int kFailed = 1, kMistaken = 2;

int complain(const std::string& text, int status = kFailed) {
  log_function()(rtrs::LogLevel::error, text);
  return status;
}

int exit_status_of(int error) {
  return error == EINVAL || error == EOPNOTSUPP ? kMistaken : kFailed;
}

/// For the I/O of a server that was killed, where it has files of the search path.
constexpr std::chrono::seconds kPatience{10};

/// The records that outlive the server. Null: a default that cannot be used, as in a mere trial.
struct State {
  std::shared_ptr<WriterStore> reservations;
  std::shared_ptr<LossCount> losses;
  std::shared_ptr<ServerIdentity> identity;
  std::shared_ptr<ServedExports> served;
  ServerAnnexes annexes;
  bool anywhere = false;    ///< by the operator's word other servers have this identity, too
  std::string directory{};  ///< "": nothing outlives the process
};

/// A mere trial may find the records of this machine's service.
bool is_mine(const std::string& directory) {
  struct stat status {};
  if (::stat((directory + "/writers").c_str(), &status) == 0) {
    return ::geteuid() == 0 || status.st_uid == ::geteuid();
  }
  return errno != ENOENT && errno != ENOTDIR && errno != EACCES;
}

/// Those that tell this server from a clone of it.
std::set<std::string> hosts_of(const std::vector<rtrs::ListenAddress>& listen) {
  std::set<std::string> hosts;
  for (const rtrs::ListenAddress& each : listen) {
    const bool wildcard =
        each.host.empty() || each.host == "*" || each.host == "0.0.0.0" || each.host == "::";
    if (!wildcard && !is_loopback(each)) hosts.insert(each.host);
  }
  return hosts;
}

/// A clone of a server must not be taken for it. So a server that finds its identity at another
/// place has a new one.
tl::expected<void, std::string> bind_to_place(ServerIdentity& identity, PlaceFile& file,
                                              const Settings& settings) {
  const ServerPlace now = this_place(hosts_of(settings.listen));
  const auto change = file.change(now);
  if (!change) return tl::unexpected(change.error());
  const auto renew = [&]() -> PlaceFile::Saved {
    if (change->empty()) return {};
    const std::string was = rtrs::server_id_text(identity.id());
    if (auto renewed = identity.renew(); !renewed) return renewed;
    log_function()(rtrs::LogLevel::warning,
                   "the state directory is from another place: " + *change +
                       "; it may be a clone, so this server is " +
                       rtrs::server_id_text(identity.id()) + " from now on, and no longer " + was +
                       "; if it is the same server, write " + was +
                       " into the file server-id there and start it again (docs/operations.md, "
                       "Which server)");
    return {};
  };
  // Without a record of the place, each start would take another identity.
  const auto saved = file.save(now, renew);
  if (saved || !change->empty()) return saved;
  log_function()(rtrs::LogLevel::warning,
                 "cannot record the place of this server, " + saved.error() +
                     ": until that is mended, a clone of it may keep its identity "
                     "(docs/operations.md, Which server)");
  return {};
}

/// Null: this process has one of its own.
std::shared_ptr<ServerIdentity> open_identity(const std::string& directory, PlaceFile& place,
                                              const Settings& settings) {
  auto identity = ServerIdentity::open(directory);
  auto bound =
      identity ? bind_to_place(*identity, place, settings) : tl::unexpected(identity.error());
  if (bound) return std::make_shared<ServerIdentity>(std::move(*identity));
  log_function()(rtrs::LogLevel::warning,
                 "cannot keep the identity of this server, " + bound.error() +
                     ": after a restart clients find it again at the address that they name only; "
                     "give each server a --state-directory of its own");
  return nullptr;
}

/// Null: it is only for the log.
std::shared_ptr<ServedExports> open_served(const std::string& directory) {
  auto served = ServedExports::open(directory, log_function());
  if (served) return *served;
  log_function()(rtrs::LogLevel::warning, "cannot record the storage of exports, " +
                                              served.error() +
                                              ": the next start does not tell if it was replaced");
  return nullptr;
}

/// `directory` is that of the state; "": nothing outlives the process.
tl::expected<ServerAnnexes, std::string> open_annexes(const Settings& settings,
                                                      const std::string& directory,
                                                      std::uint64_t losses) {
  const AnnexStart start{settings, directory, rtrs::volatile_epoch_of_this_machine(losses),
                         log_function()};
  ServerAnnexes all;
  for (const DaemonAnnex* annex : daemon_annexes()) {
    auto opened = annex->open(start);
    if (!opened) return tl::unexpected(opened.error());
    all.push_back(*std::move(opened));
  }
  return all;
}

tl::expected<State, std::string> open_state(const Settings& settings) {
  const std::string& directory = settings.state_directory;
  const std::string& search_path = settings.search_path;
  const std::string where = directory.empty() ? default_state_directory() : directory;
  if (std::string wrong = complaint_about_state_directory(where, search_path); !wrong.empty()) {
    return tl::unexpected(std::move(wrong));
  }
  auto reservations = ReservationFiles::open(where + "/writers");
  auto losses = reservations ? LossCount::open(where) : tl::unexpected(reservations.error());
  auto annexes =
      losses ? open_annexes(settings, where, losses->count()) : tl::unexpected(losses.error());
  if (annexes) {
    PlaceFile place{where};
    auto identity = open_identity(where, place, settings);
    if (identity == nullptr || place.is_anywhere()) (*reservations)->share();
    return State{std::move(*reservations),
                 std::make_shared<LossCount>(std::move(*losses)),
                 std::move(identity),
                 open_served(where + "/exports"),
                 std::move(*annexes),
                 place.is_anywhere(),
                 where};
  }
  // Without these records, a client could overwrite later writes of others.
  if (!directory.empty() || std::getenv("STATE_DIRECTORY") != nullptr || is_mine(where)) {
    return tl::unexpected("the state directory cannot be used: " + annexes.error() +
                          "; mend it, or name another --state-directory");
  }
  log_function()(rtrs::LogLevel::warning,
                 "cannot remember who wrote last, " + annexes.error() +
                     ": a client that was cut off before a restart of this server may repeat a "
                     "write over those of others, and a failed flush is forgotten then; name a "
                     "--state-directory");
  auto lasting_nowhere = open_annexes(settings, "", 0);
  if (!lasting_nowhere) return tl::unexpected(lasting_nowhere.error());
  State state;
  state.annexes = *std::move(lasting_nowhere);
  return state;
}

void record_loss(const LossCount& losses) {
  if (const auto added = losses.add(); !added) {
    log_function()(rtrs::LogLevel::error, "cannot record that a flush failed, " + added.error() +
                                              ": it is forgotten when this server ends");
  }
}

CatalogueOptions catalogue_options(const State& state) {
  CatalogueOptions options;
  options.patience = kPatience;
  if (state.reservations)
    options.reservations = std::make_shared<ReservationsBeside>(state.reservations);
  options.annexes = state.annexes;
  if (state.served) {
    options.on_served = [served = state.served](const auto& name, const auto& path,
                                                const wire::Uuid& storage) {
      served->serve(name, path, storage);
    };
  }
  if (state.losses) options.on_loss = [losses = state.losses] { record_loss(*losses); };
  return options;
}

rtrs::ServerOptions server_options(const Settings& settings, std::vector<int> sockets) {
  rtrs::ServerOptions options;
  options.listen = settings.listen;
  if (options.listen.empty() && sockets.empty()) options.listen.push_back({.host = "127.0.0.1"});
  options.listen_fds = std::move(sockets);
  options.reactors = reactors_of(settings);
  options.queue_depth = settings.queue_depth;
  options.max_io_size = settings.max_io_size;
  options.memory_limit = settings.memory_limit;
  options.max_sessions = settings.max_sessions;
  options.max_sessions_per_user = settings.max_sessions_per_user;
  options.memory_limit_per_user = settings.memory_limit_per_user;
  options.max_connections = settings.max_connections;
  options.handshake_timeout = settings.handshake_timeout;
  options.heartbeat_interval = settings.heartbeat;
  options.always_invalidate = settings.always_invalidate;
  options.header_digest = options.data_digest = !settings.no_digest;
  for (rtrs::ListenAddress& address : options.listen) {  // the settings have been judged
    if (address.transport == rtrs::TransportKind::rdma) address.tls = rtrs::TlsMode::off;
  }
  options.tls = settings.tls_mode();
  options.tls_keys = settings.tls_keys;
  options.auth = settings.auth;
  options.features = rtrs::wire::kFeatureUserMessages | rtrs::wire::kFeatureExactlyOnce |
                     rtrs::wire::kFeatureAccessNotice | rtrs::wire::kFeatureRaces |
                     wire::kFeatureClaims;
  for (const DaemonAnnex* annex : daemon_annexes()) options.features |= annex->features;
  options.log = log_function();
  if (!settings.no_uring) options.make_call = &rtrs::make_uring_call;
  return options;
}

/// Clients that meet another server of this identity, which knows no session of theirs, take that
/// for a clone if nobody takes turns.
bool takes_turns(const Settings& settings, const State& state) {
  return state.anywhere ||
         std::ranges::any_of(settings.exports, &is_shared, &ExportSpecification::storage);
}

/// "tcp:127.0.0.1:1234 (waiting for tcp:192.0.2.1:1234)"
std::string listening_on(const rtrs::Server& server) {
  std::string open, waiting;
  for (const rtrs::ListenerStatus& listener : server.listeners()) {
    std::string& list = listener.waits() ? waiting : open;
    list += (list.empty() ? "" : ", ") + listener.address;
  }
  if (open.empty()) open = "no address yet";
  return waiting.empty() ? open : open + " (waiting for " + waiting + ")";
}

/// For `systemctl status`.
std::string status_line(const Settings& settings, const rtrs::Server& server,
                        const ExportCatalogue& catalogue) {
  const bool waits = std::ranges::any_of(server.listeners(), &rtrs::ListenerStatus::waits);
  return "STATUS=exporting " + describe(settings, catalogue) +
         (waits ? "; listening on " + listening_on(server) : "") + "\n";
}

/// Of a listener that does not require TLS.
std::string warning_of(const rtrs::ListenerStatus& listener) {
  const bool may_encrypt = listener.tls == rtrs::TlsMode::on;
  if (listener.auth == rtrs::AuthMode::psk) {
    return (may_encrypt ? "clients may come without TLS, by a proof of their key, at "
                        : "clients prove their key at ") +
           listener.address +
           ", but without TLS nothing is encrypted: attackers on the way may read and change all "
           "data" +
           (may_encrypt ? "; use tls=require" : "") + " (docs/security.md)";
  }
  return (may_encrypt ? "clients may come without TLS, and without it there is no authentication "
                        "and no encryption: whoever reaches "
                      : "there is no authentication and no encryption: whoever reaches ") +
         listener.address +
         " may read and write the exports, and whoever is on the way may read and change what is "
         "sent; keep it in a trusted network, or use --tls=require (docs/security.md)";
}

/// Also of sockets that the service manager opened.
void warn_of_strangers(const rtrs::Server& server) {
  for (const rtrs::ListenerStatus& listener : server.listeners()) {
    const auto address = parse_listen(listener.address);
    if (address && is_loopback(*address)) continue;
    if (listener.tls == rtrs::TlsMode::require) continue;
    log_function()(rtrs::LogLevel::warning, warning_of(listener));
    if (listener.auth != rtrs::AuthMode::psk) return;
  }
}

/// Before a client is refused for it.
void warn_of_little_memory(const Settings& settings, const rtrs::Server& server) {
  const std::uint64_t may = raise_memlock_limit();
  const std::uint64_t path =
      std::uint64_t{settings.queue_depth} * (settings.max_io_size + std::uint64_t{4096});
  const bool rdma = std::ranges::any_of(server.listeners(), [](const auto& listener) {
    return listener.address.starts_with("rdma:");
  });
  if (!rdma || may >= path) return;
  log_function()(rtrs::LogLevel::warning, "a path over RDMA locks " + std::to_string(path >> 20) +
                                              " MiB, and only " + std::to_string(may >> 10) +
                                              " KiB may be locked: clients will be refused (" +
                                              rtrs::kMemlockAdvice + ')');
}

/// By default where the service manager has made a place for it. "": nowhere.
std::string control_path(const Settings& settings) {
  if (settings.control == "none") return "";
  const char* const places = std::getenv("RUNTIME_DIRECTORY");
  if (!settings.control.empty() || places == nullptr) return settings.control;
  const std::string_view all = places;
  return std::string{all.substr(0, all.find(':'))} + "/control";
}

ControlCommands control_commands(rtrs::Server& server, ExportCatalogue& catalogue,
                                 BlockServer& handler, const MeterBook& meters, Reloader& reloader,
                                 const ServerMetrics& metrics, const LateOpening& late_metrics) {
  auto all = with_late(server_commands(server, catalogue, handler, meters, reloader, metrics),
                       "metrics", late_metrics);
  for (const DaemonAnnex* annex : daemon_annexes())
    if (annex->commands != nullptr)
      std::ranges::move(annex->commands(catalogue), std::back_inserter(all));
  std::ranges::move(eviction_commands(server, catalogue), std::back_inserter(all));
  std::ranges::move(metrics.commands(), std::back_inserter(all));
  return ControlCommands{std::move(all)};
}

/// Opens a control socket, if there is to be one.
tl::expected<void, std::string> open_control(const std::string& path,
                                             const ControlCommands& commands,
                                             std::unique_ptr<ControlSocket>& control) {
  if (path.empty()) return {};
  auto opened = ControlSocket::open(path, [&](std::string_view line, ControlCaller caller) {
    return commands.answer(line, caller);
  });
  if (!opened) return tl::unexpected(opened.error());
  control = *std::move(opened);
  return {};
}

/// "" or the mistake.
std::string tell_ready(const Invocation& invocation, const rtrs::Server& server,
                       const ExportCatalogue& catalogue) {
  if (!invocation.settings.pid_file.empty()) {
    std::string wrong = write_pid_file(invocation.settings.pid_file);
    if (!wrong.empty()) return wrong;
  }
  const std::string ready = "ready, listening on " + listening_on(server);
  const std::string exporting = "exporting " + describe(invocation.settings, catalogue);
  log_function()(rtrs::LogLevel::info, ready + ", " + exporting);
  notify_manager("READY=1\n" + status_line(invocation.settings, server, catalogue));
  if (invocation.ready_fd < 0) return "";
  finish_log();  // a reader of the line may look at the log
  return write_ready_line(invocation.ready_fd, ready);
}

/// Leaves in the order in which nothing is used after its end; abandons all that hangs.
void stop(std::unique_ptr<rtrs::Server> server, BlockServer& handler, ExportCatalogue& catalogue,
          BlockingPool& pool) {
  catalogue.reservations().end();
  catalogue.lift_limits();
  handler.limit_sessions({});
  server->stop(kDrain);
  if (const std::size_t left = handler.sessions(); left > 0) {
    log_function()(rtrs::LogLevel::warning,
                   "I/O of " + std::to_string(left) + (left == 1 ? " session" : " sessions") +
                       " hangs in a backend, or in the state directory, and is abandoned");
    leave(0);
  }
  // A look at a path may hang here with its mount, until kLeaveWithin is over.
  pool.finish();
  handler.close_queues();
  server.reset();
}

int serve(const Invocation& invocation, ExportCatalogue& catalogue, const State& state,
          std::atomic<int>& descriptors_to_come) {
  const Settings& settings = invocation.settings;
  auto sockets = inherited_sockets(Sockets::tcp);
  if (!sockets) return complain(sockets.error());
  rtrs::ServerOptions options = server_options(settings, std::move(*sockets));
  if (state.losses) options.losses = state.losses->count();
  if (state.identity) options.id = state.identity->id();
  if (takes_turns(settings, state)) options.features |= rtrs::wire::kFeatureSharedIdentity;
  // One for both, or a host would have twice its share.
  options.client_log = std::make_shared<rtrs::ClientLog>(options.log);

  BlockingPool pool{options.client_log};
  const auto meters = std::make_shared<MeterBook>();
  pool.meters = meters;
  pool.clock = &metrics_clock;
  PathWatch paths{
      catalogue,
      [&pool](std::function<void()> work) { pool.offload(nullptr, std::move(work), {}); },
      log_function()};
  BlockServer handler{
      catalogue, {.queue_depth = settings.queue_depth, .max_io_size = settings.max_io_size}, pool};
  handler.limit_sessions(settings.session_limits);
  if (const std::string wrong = complaint_about_socket_place(control_path(settings));
      !wrong.empty()) {
    return complain(wrong);
  }
  std::unique_ptr<rtrs::Server> server;
  const auto tell_manager = [&] { notify_manager(status_line(settings, *server, catalogue)); };
  options.on_listener = tell_manager;
  server = rtrs::Server::create(options, handler);
  if (const auto started = server->start(); !started) {
    return complain(started.error().text, exit_status_of(started.error().error));
  }
  warn_of_strangers(*server);
  warn_of_little_memory(settings, *server);

  signals_mean_drain();
  std::optional<Reloader> reloader;
  reloader.emplace(invocation, Reloader::Serving{catalogue, handler, *server, tell_manager});
  const ServerMetrics metrics{*server, catalogue, *meters, settings};
  MetricsServerPtr metrics_server;
  std::optional<LateOpening> late_metrics;
  late_metrics.emplace(
      [&] {
        return open_metrics_server(
            settings.metrics, [&] { return metrics.page(); }, metrics_server);
      },
      log_function());
  const ControlCommands commands =
      control_commands(*server, catalogue, handler, *meters, *reloader, metrics, *late_metrics);
  std::unique_ptr<ControlSocket> control;
  std::optional<LateOpening> late_control;
  late_control.emplace([&] { return open_control(control_path(settings), commands, control); },
                       log_function());
  late_control->start();
  late_metrics->start();
  descriptors_to_come = 0;
  const std::string wrong = tell_ready(invocation, *server, catalogue);
  if (wrong.empty()) {
    const LateExports late{catalogue, tell_manager};
    const auto look = [&] {
      catalogue.look_at_devices();
      paths.look_soon();
      return server->sessions();
    };
    const StorageWatch watch{look, log_function()};
    const std::string signal = wait_for_shutdown();
    notify_manager("STOPPING=1\n");
    log_function()(rtrs::LogLevel::info, signal + ": stopping");
  } else {
    complain(wrong);
  }
  late_control.reset();
  control.reset();
  late_metrics.reset();
  metrics_server.reset();
  reloader.reset();
  stop(std::move(server), handler, catalogue, pool);
  return wrong.empty() ? 0 : 1;
}

}  // namespace

int run_daemon(const Invocation& invocation) {
  const Settings& settings = invocation.settings;
  start_logging(settings.log_level);
  if (invocation.check_config) return check_configuration(invocation);
  if (const std::string wrong = contradiction_in(settings); !wrong.empty())
    return complain(wrong, kMistaken);
  if (const std::string doubt = doubt_about(settings); !doubt.empty())
    log_function()(rtrs::LogLevel::warning, doubt);
  if (const std::string wrong = complaint_about_ready_fd(invocation.ready_fd); !wrong.empty())
    return complain(wrong, kMistaken);
  take_signals();
  raise_descriptor_limit();
  const auto state = open_state(settings);
  if (!state) return complain(state.error());
  const auto [to_come, catalogue, mistakes] = open_exports(settings, catalogue_options(*state));
  for (const Mistake& mistake : mistakes) complain(mistake.text);
  if (!mistakes.empty()) return kMistaken;
  if (!state->directory.empty()) {
    const auto kept = keep_evicted(catalogue->evicted(), state->directory);
    if (!kept) return complain(kept.error());
  }
  wait_for_storage(*catalogue);
  const int status = serve(invocation, *catalogue, *state, *to_come);
  remove_files();
  return status;
}

}  // namespace rnbd
