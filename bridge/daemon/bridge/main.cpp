// SPDX-License-Identifier: BSD-3-Clause
// rnbd-bridge: an NBD server in front of a block device of an RNBD server.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "bridge/client/commands.hpp"
#include "bridge/client/connections.hpp"
#include "bridge/control/control_socket.hpp"
#include "bridge/control/late_opening.hpp"
#include "bridge/control/unix_socket.hpp"
#include "bridge/daemon/bridge/annex.hpp"
#include "bridge/daemon/bridge/disk_files.hpp"
#include "bridge/daemon/bridge/heir.hpp"
#include "bridge/daemon/bridge/kernel_disks.hpp"
#include "bridge/daemon/bridge/left_clients.hpp"
#include "bridge/daemon/bridge/listeners.hpp"
#include "bridge/daemon/bridge/metrics.hpp"
#include "bridge/daemon/bridge/options.hpp"
#include "bridge/daemon/bridge/predecessor.hpp"
#include "bridge/daemon/bridge/status.hpp"
#include "bridge/daemon/logging.hpp"
#include "bridge/daemon/metrics_common.hpp"
#include "bridge/daemon/metrics_server.hpp"
#include "bridge/daemon/notify.hpp"
#include "bridge/daemon/process.hpp"
#include "bridge/daemon/shutdown.hpp"
#include "bridge/nbd/front.hpp"
#include "bridge/protocol/printable.hpp"
#include "rdma/transport/tls/credentials.hpp"

namespace rnbd {
namespace {

/// For requests under way; less than kLeaveWithin by the time that closing everything takes.
constexpr std::chrono::milliseconds kDrain{3000};
constexpr std::chrono::milliseconds kLeastDrain{1000};
/// Of that, for clients whose requests have ended.
constexpr std::chrono::milliseconds kTimeToLetGo{500};
/// For closing everything but the clients behind a replacement.
constexpr std::chrono::seconds kTimeForGoodbye{3};
/// For clients that were taken back.
constexpr std::chrono::milliseconds kTimeToSettle{1000}, kSettleAgain{5};

int complain(const std::string& text) {
  log_function()(rtrs::LogLevel::error, text);
  return 1;
}

/// The files of Unix sockets that were made here go when the process ends in a hurry, too. Destroy
/// it after the listeners, because later files at their paths belong to other programs.
class SocketFiles {
 public:
  void add(const std::vector<nbd::Listener>& listeners) {
    for (const nbd::Listener& listener : listeners) {
      if (listener.path().empty()) continue;
      remove_at_exit(listener.path());
      paths_.push_back(listener.path());
    }
  }
  SocketFiles() = default;
  SocketFiles(const SocketFiles&) = delete;
  SocketFiles& operator=(const SocketFiles&) = delete;
  ~SocketFiles() {
    for (const std::string& path : paths_) removed(path);
  }

 private:
  std::vector<std::string> paths_;
};

std::string describe(const ClientConfig& config) {
  return config.server() + (config.dynamic_export ? "" : "/" + config.device);
}

/// For `systemctl status`.
std::string status_line(const BridgeOptions& options, const BridgeListeners& listeners) {
  const bool waits = std::ranges::any_of(
      listeners.status(), [](const auto& listener) { return !listener.trouble.empty(); });
  return "STATUS=in front of " + describe(options.client) +
         (waits ? "; listening on " + listeners.describe() : "") + "\n";
}

/// "" or the mistake. An heir has the clients already, and must go on.
std::string tell_ready(const BridgeOptions& options, const BridgeListeners& listeners,
                       const KernelDisks& disks, bool is_heir) {
  if (!options.pid_file.empty()) {
    std::string wrong = write_pid_file(options.pid_file);
    if (!wrong.empty() && !is_heir) return wrong;
    if (!wrong.empty()) complain(wrong);
  }
  std::string ready = "ready" + disks.before_server();
  if (!listeners.status().empty()) ready += ", listening on " + listeners.describe();
  log_function()(rtrs::LogLevel::info, ready + ", in front of " + describe(options.client));
  notify_manager("READY=1\n" + status_line(options, listeners));
  if (options.ready_fd < 0) return "";
  finish_log();  // a reader of the line may look at the log
  return write_ready_line(options.ready_fd, ready);
}

/// Opens a control socket, if a path is named.
tl::expected<void, std::string> open_control(const std::string& path,
                                             const ControlCommands& commands,
                                             std::unique_ptr<ControlSocket>& control) {
  if (path.empty()) return {};
  auto opened = ControlSocket::open(path, [&commands](std::string_view line, ControlCaller caller) {
    return commands.answer(line, caller);
  });
  if (!opened) return tl::unexpected(opened.error());
  control = *std::move(opened);
  remove_at_exit(path);
  return {};
}

/// As many as a session has lanes by default.
unsigned count_workers(const ClientConfig& config) {
  return config.lanes != 0 ? config.lanes : std::clamp(std::thread::hardware_concurrency(), 1U, 4U);
}

tl::expected<nbd::FrontTls, std::string> front_tls(const BridgeOptions& options) {
  nbd::FrontTls tls{.mode = options.tls_mode(), .keys = nullptr};
  if (tls.mode == rtrs::TlsMode::off) return tls;
  auto keys = rtrs::tls::KeyStore::open(options.tls_keys, log_function());
  if (!keys) return tl::unexpected(keys.error());
  tls.keys = *std::move(keys);
  return tls;
}

bool leads_elsewhere(const rtrs::PathAddress& path) {
  return path.host != "localhost" && path.host != "::1" && !path.host.starts_with("127.");
}

void warn(const BridgeOptions& options, const BridgeListeners& listeners) {
  const bool open_to_strangers =
      std::ranges::any_of(listeners.status(), &BridgeListeners::Status::reachable_from_outside);
  if (open_to_strangers && options.tls_mode() != rtrs::TlsMode::require) {
    log_function()(rtrs::LogLevel::warning,
                   "there is no authentication: whoever reaches " + listeners.describe() +
                       " may use the device; prefer a Unix socket, or use --tls=require");
  }
  // A user with one half encrypted may believe that all is.
  if (options.tls_mode() != rtrs::TlsMode::off && options.client.tls == rtrs::TlsMode::off &&
      std::ranges::any_of(options.client.paths, leads_elsewhere)) {
    log_function()(rtrs::LogLevel::warning,
                   "NBD clients come with TLS, but the way to the server is not encrypted: write "
                   "rnbds+tcp:// if it is to be (--tls is about NBD clients only)");
  }
}

bool serves_nbd(const BridgeOptions& options, const BridgeListeners& listeners, bool is_heir) {
  return options.other_face.empty() && (is_heir || !listeners.status().empty());
}

/// Null: there is none.
tl::expected<std::unique_ptr<BridgeFace>, std::string> open_other_face(const BridgeOptions& options,
                                                                       nbd::Exports& exports,
                                                                       nbd::Front& front) {
  if (options.other_face.empty()) return nullptr;
  const BridgeAnnex& annex = *annex_of_address(options.other_face);
  const std::string path = annex.path_of(options.other_face).value();
  auto face = annex.open(path, {.exports = exports,
                                .meters = front.meters(),
                                .log = log_function(),
                                .make_call = options.no_uring ? nullptr : &rtrs::make_uring_call});
  if (face) remove_at_exit(path);
  return face;
}

void end_other_face(const BridgeOptions& options, std::unique_ptr<BridgeFace> face,
                    std::chrono::steady_clock::time_point until) {
  if (!face) return;
  face->stop(until);
  face.reset();
  removed(annex_of_address(options.other_face)->path_of(options.other_face).value());
}

/// 2: it would be the same at the next start.
int give_back(nbd::Front& front, Connections& connections, const Failure& why) {
  complain(why.text);
  front.stop(kDrain);
  connections.leave();
  return why.error == ESTALE ? 2 : 1;
}

/// A later version may have stored what this one does not know.
void forget_all(const std::vector<StoredDescriptor>& unknown) {
  for (const StoredDescriptor& each : unknown) {
    forget_descriptor(each.name);
    ::close(each.fd);
  }
}

// ---- Replacement by another program -------------------------------------------------------------

/// "" or the reason why no heir could go on with what this program does.
std::string why_no_heir(const BridgeOptions& options, Connections& connections,
                        const LeftClients& left) {
  if (::getpid() == 1)
    return "it is the first process of its container, which ends with it: start another container";
  if (!options.other_face.empty())
    return options.other_face + " is not handed over: restart it when its users are prepared";
  if (options.kernel || !options.disks.empty())
    return "it serves disks of the kernel: restart it, and their requests wait";
  if (connections.source() != nullptr)
    return "a disk of several servers is not handed over: restart it when its users are prepared";
  if (options.client.access == wire::AccessMode::migration)
    return "access=migration: another host may write, too; try it again after the migration";
  if (!options.client.session_name.empty())
    return "its session has a fixed name (session), which two programs cannot have at a time: "
           "restart it, which its clients survive under a service manager that keeps descriptors";
  if (!left.settled()) return "NBD clients still wait for their disks; try it again later";
  return "";
}

std::string why_not_still(const nbd::Front::Pause& pause) {
  const auto clients = [](unsigned number) {
    return std::to_string(number) + (number == 1 ? " NBD client" : " NBD clients");
  };
  if (pause.staying.encrypted > 0)
    return clients(pause.staying.encrypted) +
           " came over TLS, whose keys do not leave this process: restart it when they are "
           "prepared";
  if (pause.staying.others > 0)
    return clients(pause.staying.others) +
           " use disks that are not handed over (in mode=passive, lost, or of a server that tells "
           "no UUID): restart it when they are prepared";
  if (pause.staying.leaving > 0)
    return clients(pause.staying.leaving) + " are about to leave: try it again";
  if (pause.silent > 0)
    return clients(pause.silent) +
           (pause.silent == 1 ? " sends no more of a request, or reads no answers"
                              : " send no more of their requests, or read no answers") +
           ": end it, or try it again";
  return pause.still ? "" : "requests under way do not end: see whether the server works";
}

/// Returns "" when the disks are closed, or why they are not.
std::string let_go(nbd::Front& front, const BridgeListeners& listeners,
                   std::chrono::steady_clock::time_point until, Estate& estate) {
  estate = {.listeners = listeners.left(), .clients = front.release_all().await(until)};
  return front.await_closed(until) ? ""
                                   : "the disks are not closed in time: see whether the "
                                     "server works";
}

[[noreturn]] void leave_to(pid_t heir, const std::function<void()>& say_goodbye) {
  keep_files();
  notify_manager("MAINPID=" + std::to_string(heir) + "\n");
  try {
    std::thread{[] {
      std::this_thread::sleep_for(kTimeForGoodbye);
      leave(0);
    }}.detach();
    say_goodbye();
  } catch (const std::system_error&) {  // no thread; the server learns of the end anyway
  }
  leave(0);
}

/// Of an heir that cannot follow: nothing here may be touched any more.
[[noreturn]] void give_way(Predecessor& predecessor, const std::string& why) {
  predecessor.refuse(why);
  complain(why);
  keep_files();
  leave(1);
}

/// Connects to the server, so that clients need not wait for that.
void get_ready(Predecessor& predecessor, Connections& connections) {
  auto session = connections.session().get({});
  if (!session) give_way(predecessor, session.error().text);
}

/// Takes over what the predecessor has, and returns its sockets that listen. The clients are
/// served by go_on().
std::vector<nbd::Listener> follow(Predecessor& predecessor, const BridgeOptions& options,
                                  Connections& connections, BridgeListeners& listeners,
                                  LeftClients& left) {
  auto estate = predecessor.await_estate();
  if (!estate) give_way(predecessor, estate.error());
  left.take(std::move(estate->clients));
  // An heir that gives up must leave no trace in the server's numbers of writers.
  ClientConfig unclaimed = options.client;
  if (unclaimed.access == wire::AccessMode::read_write) unclaimed.access.reset();
  nbd::Exports exports{unclaimed, connections};
  if (const std::string why = left.open_now(unclaimed, exports); !why.empty())
    give_way(predecessor, why);
  // Behind its answer the clients are here, and must be left to the next start.
  signals_mean_drain();
  if (!predecessor.take_over()) give_way(predecessor, "the running program goes on");
  return listeners.adopt(estate->listeners);
}

std::vector<ControlCommand> with_upgrade(std::vector<ControlCommand> commands, Heirs& heirs) {
  commands.push_back(
      {"upgrade", "[state]",
       "Begins to replace the program by the one that is installed now, while its "
       "clients go on; or only says how far that is.",
       [&heirs](const std::string& argument) -> tl::expected<Json, Failure> {
         if (argument.empty()) {
           if (auto asked = heirs.ask(); !asked) return tl::unexpected(asked.error());
         } else if (argument != "state") {
           return tl::unexpected(Failure{EINVAL, "upgrade takes no argument but state"});
         }
         const Heirs::Status now = heirs.status();
         return Json{{"state", name_of(now.stage)},
                     {"trouble", now.trouble},
                     {"pid", ::getpid()},
                     {"version", RNBDKIT_VERSION}};
       }});
  return commands;
}

int serve(const BridgeOptions& options, const DiskFiles* files, const Program& program,
          Predecessor* predecessor) {
  std::vector<StoredDescriptor> stored = stored_descriptors();
  StoredDisks stored_disks = take_stored_disks(stored);
  LeftClients left{stored};
  forget_all(stored);
  const auto fail = [&](const std::string& why) {
    if (predecessor != nullptr) give_way(*predecessor, why);
    return complain(why);
  };
  auto opened =
      predecessor != nullptr ? BridgeListeners::of_heir(options) : BridgeListeners::open(options);
  if (!opened) return complain(opened.error());
  BridgeListeners& listeners = **opened;
  std::vector<nbd::Listener> first = listeners.take_first();
  SocketFiles socket_files;
  socket_files.add(first);
  std::vector<nbd::Listener> served{std::move(first)};
  auto tls = front_tls(options);
  if (!tls) return fail(tls.error());
  const std::string wrong_place = complaint_about_socket_place(options.client.control);
  if (!wrong_place.empty()) return fail(wrong_place);
  if (predecessor == nullptr) warn(options, listeners);
  Connections connections{options.client, log_function()};
  // Their disks are opened anyway, and a trial would be one more writer.
  if (predecessor != nullptr) {
    get_ready(*predecessor, connections);
  } else if (options.client.connect_now && left.empty()) {
    if (auto usable = connections.attach(); !usable) return complain(usable.error().text);
  }
  nbd::Exports exports{options.client, connections};
  nbd::Front front{exports,
                   std::move(served),
                   {.workers = count_workers(options.client),
                    .max_connections = options.max_connections,
                    .tls = *std::move(tls),
                    .log = log_function(),
                    .make_call = options.no_uring ? nullptr : &rtrs::make_uring_call}};
  auto other_face = open_other_face(options, exports, front);
  if (!other_face) return fail(other_face.error());
  const BridgeMetrics metrics{
      options.client, connections, front, options.tls_keys.certificates,
      serves_nbd(options, listeners, predecessor != nullptr) ? options.max_connections : 0};
  MetricsServerPtr metrics_server;
  std::optional<LateOpening> late_metrics;
  late_metrics.emplace(
      [&] {
        return open_metrics_server(
            options.metrics, [&] { return metrics.page(); }, metrics_server);
      },
      log_function());
  KernelDisks disks{options, files, connections, front, std::move(stored_disks)};
  auto of_client = metrics.with_limits(client_commands(options.client, connections));
  auto all = with_late(with_listeners(std::move(of_client), listeners), "metrics", *late_metrics);
  std::ranges::move(metrics.commands(), std::back_inserter(all));
  std::atomic<bool> ready{false};
  std::function<void()> say_goodbye;
  Heirs heirs{
      program,
      {.why_not = [&] { return ready ? why_no_heir(options, connections, left) : "it starts"; },
       .let_meet = [&](auto until) { return front.let_meet(until); },
       .pause = [&](auto until) { return why_not_still(front.pause(until)); },
       .let_go = [&](auto until,
                     Estate& estate) { return let_go(front, listeners, until, estate); },
       .resume =
           [&] {
             front.resume();
             front.open_door();
           },
       .take_back =
           [&](Estate estate) {
             front.resume();
             left.take(std::move(estate.clients));
             left.go_on(options.client, exports, front);
             // Usually at once; then the next heir may be asked for.
             const auto until = std::chrono::steady_clock::now() + kTimeToSettle;
             while (!left.settled() && std::chrono::steady_clock::now() < until)
               std::this_thread::sleep_for(kSettleAgain);
           },
       .leave = [&](pid_t heir) { leave_to(heir, say_goodbye); }}};
  const ControlCommands commands{with_upgrade(disks.with_disks(std::move(all)), heirs)};
  std::unique_ptr<ControlSocket> control;
  std::optional<LateOpening> late_control;
  late_control.emplace([&] { return open_control(options.client.control, commands, control); },
                       log_function());
  if (predecessor == nullptr) late_control->start();
  front.start();
  if (auto begun = disks.begin(); !begun) {
    late_control.reset();
    control.reset();
    return give_back(front, connections, begun.error());
  }
  if (*other_face) (*other_face)->open_door();
  if (predecessor != nullptr) {
    auto followed = follow(*predecessor, options, connections, listeners, left);
    socket_files.add(followed);
    front.add(std::move(followed));
  } else {
    signals_mean_drain();
  }
  left.go_on(options.client, exports, front);
  if (predecessor != nullptr) {
    if (!predecessor->await_end(&shutdown_begun))
      log_function()(rtrs::LogLevel::warning, "the old program has not ended yet");
    late_control->start();
  }
  late_metrics->start();
  const std::string wrong = tell_ready(options, listeners, disks, predecessor != nullptr);
  listeners.await_others([&](auto late) { front.add(std::move(late)); },
                         [&] { notify_manager(status_line(options, listeners)); });
  auto began = std::chrono::steady_clock::now();  // to end
  if (wrong.empty()) {
    const BridgeStatus status{
        [&] { return connections.status(); },
        [&] { return "in front of " + describe(options.client) + disks.behind_server(); }};
    say_goodbye = [&] {
      late_control.reset();
      control.reset();
      late_metrics.reset();
      metrics_server.reset();
      connections.leave();
    };
    ready = true;
    on_user_signal([&] { (void)heirs.ask(); });
    const std::string signal = wait_for_shutdown();
    began = std::chrono::steady_clock::now();
    on_user_signal({});
    heirs.stop();
    notify_manager("STOPPING=1\n");
    log_function()(rtrs::LogLevel::info, signal + ": stopping");
  } else {
    complain(wrong);
  }
  late_control.reset();
  if (control) {
    control.reset();
    removed(options.client.control);
  }
  late_metrics.reset();
  metrics_server.reset();
  listeners.end();
  // To take back what an heir was offered may have taken a part of it.
  const auto until = std::max(began + kDrain, std::chrono::steady_clock::now() + kLeastDrain);
  end_other_face(options, *std::move(other_face), until);
  auto clients = left.end();
  disks.stop();
  std::optional<nbd::Front::ReleasingAll> releasing;
  if (manager_keeps_descriptors()) {
    // A right that one of them may still be granted is known of all when the first is let go.
    front.pause(until - kTimeToLetGo, nbd::Worker::Others::end);
    releasing = front.release_all();
  }
  disks.end(until);
  if (releasing) {
    std::ranges::move(releasing->await(until), std::back_inserter(clients));
    store_clients(std::move(clients));
  }
  left.close_disks();
  front.stop(std::chrono::ceil<std::chrono::milliseconds>(
      std::max(until - std::chrono::steady_clock::now(), {})));
  connections.leave();
  return wrong.empty() ? 0 : 1;
}

int serve(const BridgeOptions& options, const DiskFiles* files, const Program& program) {
  auto predecessor = Predecessor::of_environment();
  if (!predecessor) return serve(options, files, program, nullptr);
  try {
    return serve(options, files, program, &*predecessor);
  } catch (const std::exception& error) {
    give_way(*predecessor, error.what());
  }
}

/// Serves the disks of files, whose session is that of the first file that is right.
int serve_disks(const BridgeOptions& options, const Program& program) {
  DiskFiles files{options.disks, options.disk_files};
  auto session = files.session();
  if (!session) {
    complain(session.error());
    return 2;
  }
  session->disks = options.disks;
  session->client.control = options.client.control;
  session->pid_file = options.pid_file;
  session->ready_fd = options.ready_fd;
  return serve(*session, &files, program);
}

int run(const BridgeOptions& options, const Program& program) {
  keep_no_freed_memory();
  start_logging(options.log_level);
  if (const std::string wrong = complaint_about_ready_fd(options.ready_fd); !wrong.empty()) {
    complain(wrong);
    return 2;
  }
  take_signals();
  raise_descriptor_limit();
  raise_memlock_limit();  // a path over RDMA locks some 65 MiB; it says so then if it may not
  const int status =
      options.disks.empty() ? serve(options, nullptr, program) : serve_disks(options, program);
  remove_files();
  return status;
}

}  // namespace
}  // namespace rnbd

int main(int argc, char** argv) {
  if (!rnbd::open_standard_streams()) return 1;
  try {
    const rnbd::Program program = rnbd::Program::of(argc, argv);
    auto options = rnbd::parse_bridge_options(argc, argv);
    if (!options) {
      const rnbd::EarlyExit& early = options.error();
      std::fputs(early.text.c_str(), early.status == 0 ? stdout : stderr);
      return early.status;
    }
    if (rnbd::Predecessor::is_expected()) options->ready_fd = -1;  // which only the first one has
    const int status = rnbd::run(*options, program);
    rnbd::finish_log();
    return status;
  } catch (const std::exception& error) {
    rnbd::finish_log();
    std::fprintf(stderr, "rnbd-bridge: cannot start: %s\n",
                 rnbd::on_one_line(error.what()).c_str());
    return 1;
  }
}
