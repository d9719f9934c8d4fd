#include "bridge/daemon/daemon.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <thread>

#include "bridge/control/control_socket.hpp"
#include "bridge/daemon/blocking_pool.hpp"
#include "bridge/daemon/late_exports.hpp"
#include "bridge/daemon/logging.hpp"
#include "bridge/daemon/notify.hpp"
#include "bridge/daemon/process.hpp"
#include "bridge/daemon/server_control.hpp"
#include "bridge/daemon/shutdown.hpp"
#include "bridge/daemon/state_directory.hpp"
#include "bridge/daemon/storage_watch.hpp"
#include "bridge/server/block_server.hpp"
#include "rdma/client_log.hpp"
#include "rdma/memlock.hpp"
#include "rdma/server.hpp"

namespace rnbd {
namespace {

/// For running requests; less than kLeaveWithin by what closing everything takes.
constexpr std::chrono::milliseconds kDrain{3000};

int complain(const std::string& text) {
  log_function()(rtrs::LogLevel::error, text);
  return 1;
}

/// For the I/O of a server that was killed, where it has files of the search path.
constexpr std::chrono::seconds kPatience{10};

/// What outlives the server. Null: a default that cannot be used, as that of somebody who only
/// tries things out.
struct State {
  std::shared_ptr<WriterStore> turns;
  std::shared_ptr<LossCount> losses;
  std::shared_ptr<ServerIdentity> identity;
};

/// Clients must not open what is kept of them.
bool is_below(const std::string& path, std::string directory) {
  constexpr std::string_view kEach = "/%SESSNAME%";
  if (directory.ends_with(kEach)) directory.resize(directory.size() - kEach.size());
  if (directory.empty()) return false;
  const auto inner = std::filesystem::weakly_canonical(path);
  const auto outer = std::filesystem::weakly_canonical(directory);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

/// Who only tries things out may find what a service of this machine keeps.
bool is_mine(const std::string& directory) {
  struct stat status {};
  if (::stat((directory + "/writers").c_str(), &status) == 0) {
    return ::geteuid() == 0 || status.st_uid == ::geteuid();
  }
  return errno != ENOENT && errno != ENOTDIR && errno != EACCES;
}

/// Null: this process has one of its own.
std::shared_ptr<ServerIdentity> open_identity(const std::string& directory) {
  auto identity = ServerIdentity::open(directory);
  if (identity) return std::make_shared<ServerIdentity>(std::move(*identity));
  log_function()(rtrs::LogLevel::warning,
                 "cannot keep the identity of this server, " + identity.error() +
                     ": after a restart clients find it again at the address that they name only; "
                     "give each server a --state-directory of its own");
  return nullptr;
}

tl::expected<State, std::string> open_state(const std::string& directory,
                                            const std::string& search_path) {
  const std::string where = directory.empty() ? default_state_directory() : directory;
  if (is_below(where, search_path)) {
    return tl::unexpected("the state directory " + where + " lies below the search path " +
                          search_path +
                          ", where clients could open it; name another "
                          "--state-directory");
  }
  auto turns = TurnFiles::open(where + "/writers");
  auto losses = turns ? LossCount::open(where) : tl::unexpected(turns.error());
  if (losses) {
    return State{std::move(*turns), std::make_shared<LossCount>(std::move(*losses)),
                 open_identity(where)};
  }
  // Without records that are there, a client would undo what others have written since.
  if (!directory.empty() || std::getenv("STATE_DIRECTORY") != nullptr || is_mine(where)) {
    return tl::unexpected("the state directory cannot be used: " + losses.error() +
                          "; mend it, or name another --state-directory");
  }
  log_function()(rtrs::LogLevel::warning,
                 "cannot remember who wrote last, " + losses.error() +
                     ": a client that was cut off before a restart of this server may repeat a "
                     "write over those of others, and a failed flush is forgotten then; name a "
                     "--state-directory");
  return State{};
}

void record_loss(const LossCount& losses) {
  if (const auto added = losses.add(); !added) {
    log_function()(rtrs::LogLevel::error, "cannot record that a flush failed, " + added.error() +
                                              ": it is forgotten when this server ends");
  }
}

/// Both the server and what it opens for each of them have to know.
unsigned reactors_of(const Settings& settings) {
  constexpr unsigned kMost = 8;
  return settings.reactors != 0 ? settings.reactors
                                : std::clamp(std::thread::hardware_concurrency(), 1U, kMost);
}

/// `state`: null if nothing is to be served.
tl::expected<std::unique_ptr<ExportCatalogue>, std::string> open_exports(const Settings& settings,
                                                                         const State* state) {
  CatalogueOptions options;
  options.direct = settings.direct;
  options.use_uring = !settings.no_uring;
  options.queues = reactors_of(settings);
  options.log = log_function();
  if (state != nullptr) {
    options.patience = kPatience;
    options.turns = state->turns;
    if (state->losses) options.on_loss = [losses = state->losses] { record_loss(*losses); };
  }
  auto catalogue = std::make_unique<ExportCatalogue>(std::move(options));
  // What is open for writing serves readers, too, but not the other way round.
  for (const bool read_only : {false, true}) {
    for (const ExportSpecification& specification : settings.exports) {
      if (specification.read_only != read_only) continue;
      const auto added = catalogue->add(specification);
      if (!added) return tl::unexpected(added.error().text);
    }
  }
  if (!settings.search_path.empty()) {
    const auto set = catalogue->set_search_path(settings.search_path);
    if (!set) return tl::unexpected(set.error().text);
  }
  return catalogue;
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
  options.max_connections = settings.max_connections;
  options.handshake_timeout = settings.handshake_timeout;
  options.heartbeat_interval = settings.heartbeat;
  options.always_invalidate = settings.always_invalidate;
  options.header_digest = options.data_digest = !settings.no_digest;
  options.features = rtrs::wire::kFeatureUserMessages | rtrs::wire::kFeatureExactlyOnce |
                     rtrs::wire::kFeatureAccessNotice | wire::kFeatureClaims;
  options.log = log_function();
  return options;
}

std::string describe(const Settings& settings, const ExportCatalogue& catalogue) {
  std::string text = describe_exports(catalogue);
  if (!settings.search_path.empty())
    text += (text.empty() ? "" : "; ") + ("what is below " + settings.search_path);
  return text;
}

std::string listening_on(const rtrs::Server& server) {
  std::string text;
  for (const std::string& address : server.addresses())
    text += (text.empty() ? "" : ", ") + address;
  return text;
}

/// Also of sockets that the service manager opened.
void warn_of_strangers(const rtrs::Server& server) {
  for (const std::string& text : server.addresses()) {
    const auto address = parse_listen(text);
    if (address && is_loopback(*address)) continue;
    log_function()(rtrs::LogLevel::warning,
                   "there is no authentication: whoever reaches " + text +
                       " may read and write the exports; keep it in a trusted network");
    return;
  }
}

/// Before a client is refused for it.
void warn_of_little_memory(const Settings& settings, const rtrs::Server& server) {
  const std::uint64_t may = raise_memlock_limit();
  const std::uint64_t path =
      std::uint64_t{settings.queue_depth} * (settings.max_io_size + std::uint64_t{4096});
  const auto addresses = server.addresses();
  const bool rdma = std::ranges::any_of(
      addresses, [](const std::string& address) { return address.starts_with("rdma:"); });
  if (!rdma || may >= path) return;
  log_function()(rtrs::LogLevel::warning, "a path over RDMA locks " + std::to_string(path >> 20) +
                                              " MiB, and only " + std::to_string(may >> 10) +
                                              " KiB may be locked: clients will be refused (" +
                                              rtrs::kMemlockAdvice + ')');
}

using Control = std::unique_ptr<ControlSocket>;

tl::expected<Control, std::string> open_control(const std::string& path, rtrs::Server& server,
                                                const ExportCatalogue& catalogue) {
  if (path.empty()) return nullptr;
  return ControlSocket::open(path, [commands = server_commands(server, catalogue)](
                                       std::string_view line) { return commands.answer(line); });
}

/// "" or what is wrong.
std::string tell_ready(const Invocation& invocation, const rtrs::Server& server,
                       const ExportCatalogue& catalogue) {
  if (!invocation.settings.pid_file.empty()) {
    std::string wrong = write_pid_file(invocation.settings.pid_file);
    if (!wrong.empty()) return wrong;
  }
  const std::string ready = "ready, listening on " + listening_on(server);
  const std::string exporting = "exporting " + describe(invocation.settings, catalogue);
  log_function()(rtrs::LogLevel::info, ready + ", " + exporting);
  notify_manager("READY=1\nSTATUS=" + exporting + "\n");
  if (invocation.ready_fd < 0) return "";
  return write_ready_line(invocation.ready_fd, ready);
}

/// Leaves in the order in which nothing is used after its end; what hangs is abandoned.
void stop(std::unique_ptr<rtrs::Server> server, BlockServer& handler, ExportCatalogue& catalogue,
          std::unique_ptr<BlockingPool> pool) {
  catalogue.end();
  server->stop(kDrain);
  if (const std::size_t left = handler.sessions(); left > 0) {
    log_function()(rtrs::LogLevel::warning,
                   "I/O of " + std::to_string(left) + (left == 1 ? " session" : " sessions") +
                       " hangs in a backend, or in the state directory, and is abandoned");
    leave(0);
  }
  pool.reset();
  handler.close_queues();
  server.reset();
}

int serve(const Invocation& invocation, ExportCatalogue& catalogue, const State& state) {
  const Settings& settings = invocation.settings;
  auto sockets = inherited_sockets(Sockets::tcp);
  if (!sockets) return complain(sockets.error());
  rtrs::ServerOptions options = server_options(settings, std::move(*sockets));
  if (state.losses) options.losses = state.losses->count();
  if (state.identity) options.id = state.identity->id();
  // One for both, or a host would have twice what it may have.
  options.client_log = std::make_shared<rtrs::ClientLog>(options.log);

  auto pool = std::make_unique<BlockingPool>();
  BlockServer handler{catalogue,
                      {.queue_depth = settings.queue_depth, .max_io_size = settings.max_io_size},
                      pool->surroundings(options.client_log)};
  auto server = rtrs::Server::create(options, handler);
  if (const auto started = server->start(); !started) return complain(started.error().text);
  warn_of_strangers(*server);
  warn_of_little_memory(settings, *server);

  signals_mean_drain();
  auto control = open_control(settings.control, *server, catalogue);
  const std::string wrong = control ? tell_ready(invocation, *server, catalogue) : control.error();
  if (wrong.empty()) {
    const LateExports late{
        catalogue,
        [&] { notify_manager("STATUS=exporting " + describe(settings, catalogue) + "\n"); }};
    const StorageWatch watch{[&] { return server->sessions(); }, log_function()};
    const std::string signal = wait_for_shutdown();
    notify_manager("STOPPING=1\n");
    log_function()(rtrs::LogLevel::info, signal + ": stopping");
  } else {
    complain(wrong);
  }
  if (control) control->reset();
  stop(std::move(server), handler, catalogue, std::move(pool));
  return wrong.empty() ? 0 : 1;
}

}  // namespace

int run_daemon(const Invocation& invocation) {
  const Settings& settings = invocation.settings;
  start_logging(settings.log_level);
  if (const std::string wrong = contradiction_in(settings); !wrong.empty()) return complain(wrong);
  if (const std::string doubt = doubt_about(settings); !doubt.empty())
    log_function()(rtrs::LogLevel::warning, doubt);
  if (const std::string wrong = complaint_about_ready_fd(invocation.ready_fd); !wrong.empty())
    return complain(wrong);
  take_signals();
  raise_descriptor_limit();
  tl::expected<State, std::string> state;
  if (!invocation.check_config) state = open_state(settings.state_directory, settings.search_path);
  if (!state) return complain(state.error());
  auto catalogue = open_exports(settings, invocation.check_config ? nullptr : &*state);
  if (!catalogue) return complain(catalogue.error());
  if (invocation.check_config) {
    tell_what_waits(**catalogue, "the server would serve the others meanwhile");
    announce("the configuration is correct, exporting " + describe(settings, **catalogue));
    return 0;
  }
  wait_for_storage(**catalogue);
  const int status = serve(invocation, **catalogue, *state);
  remove_files();
  return status;
}

}  // namespace rnbd
