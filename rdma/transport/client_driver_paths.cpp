// SPDX-License-Identifier: BSD-3-Clause
// Paths that come and go, and what becomes of the session then.
#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <sstream>
#include <utility>

#include "rdma/transport/client_driver.hpp"
#include "rdma/transport/clock.hpp"
#include "rdma/transport/resolve.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;

std::optional<TlsKeys> keys_of(const ClientOptions& options) {
  if (options.tls == TlsMode::off) return std::nullopt;
  return options.tls_keys;
}

/// "queue depth 16, which was 256": what a server has less of than before.
std::string shortage(const wire::AcceptParameters& before, const wire::AcceptParameters& now) {
  std::string text;
  const auto add = [&](const std::string& what) { text += (text.empty() ? "" : ", ") + what; };
  const auto compare = [&](const char* what, std::uint64_t had, std::uint64_t has) {
    if (has < had) add(what + std::to_string(has) + ", which was " + std::to_string(had));
  };
  compare("queue depth ", before.queue_depth, now.queue_depth);
  compare("request size ", before.max_io_size, now.max_io_size);
  if (now.extension.features != before.extension.features) add("other features");
  return text;
}

/// As long as a server, its host, its network, our own or a name server is not there yet.
bool may_come_yet(int error) {
  constexpr int kAbsent[] = {ECONNREFUSED, ECONNRESET,    EHOSTUNREACH, ENETUNREACH,
                             ENETDOWN,     EADDRNOTAVAIL, ETIMEDOUT};
  return std::ranges::find(kAbsent, error) != std::end(kAbsent);
}

}  // namespace

std::string ClientDriver::name_of_path(unsigned path) const {
  return name_of(options_.paths[path]);
}

void ClientDriver::for_each_lane(const std::function<void(ClientLane&)>& function) {
  for (auto& lane : lanes_) lane->with_lane(function);
  if (!control_lane_) return;
  function(*control_lane_);
  flush_control_on_io();
}

void ClientDriver::flush_control_on_io() {
  for (Path& path : paths_) {
    if (path.driver) path.driver->flush();
  }
}

ConnectOptions ClientDriver::connect_options(const PathAddress& address, Duration patience) const {
  return {.address = address,
          .addresses = {},
          .header_digest = options_.header_digest,
          .data_digest = options_.data_digest,
          .patience = patience,
          .tls_keys = keys_of(options_),
          .tls = nullptr,
          .auth_keys = options_.auth_keys,
          .log = options_.log};
}

// ---- A path comes ------------------------------------------------------------------------------

void ClientDriver::connect_on_io(unsigned index) {
  // Long enough for a slow server, short enough to find a path soon that has come back.
  constexpr Duration kPatience = std::chrono::seconds{2};
  Path& path = paths_[index];
  if (!path.lookup) path.lookup = std::make_shared<HostLookup>(options_.paths[index].host);
  const unsigned life = ++path.life;
  path.held = false;
  const Duration patience =
      session_.was_up()
          ? std::min(options_.connect_timeout, std::max(kPatience, options_.heartbeat_interval * 4))
          : options_.connect_timeout;
  ClientPathHooks hooks;
  hooks.ready = [this, index] { ready_on_io(index); };
  hooks.lost = [this, index, life](const Failure& failure) { lose_on_io(index, life, failure); };
  hooks.traffic = [this, index] { return heard_on_io(index); };
  hooks.latency = [this, index](Duration latency) {
    if (options_.policy != PathPolicy::min_latency) return;
    for_each_lane([&](ClientLane& lane) { lane.set_latency(index, latency); });
  };
  hooks.access = [this, index] { access_changed_on_io(index); };
  hooks.flush_all = [this] { flush_control_on_io(); };
  path.driver = std::make_shared<PathDriver>(
      io_, session_.begin(index), connect_options(options_.paths[index], patience), path.lookup,
      options_.session_name, options_.connect_timeout, std::move(hooks));
  path.driver->start();
}

bool ClientDriver::heard_on_io(unsigned index) {
  note_pause_on_io();
  bool heard = false;
  const unsigned misses_max = session_.misses_max(index);
  bool lives = session_.path(index).control_silence() <= misses_max;
  for (auto& lane : lanes_) {
    lane->service();
    heard |= lane->heard(index);
    lives &= lane->probe(index, misses_max);
  }
  if (lives) {
    session_.lives(index, now());
  } else {
    give_up_path_on_io(index);
  }
  fail_overdue_on_io();
  check_leaving_on_io(index);
  tell_of_held_opens_on_io();
  tell_of_held_changes_on_io();
  return heard;
}

/// Later: its heartbeat is on the stack.
void ClientDriver::give_up_path_on_io(unsigned index) {
  session_.looks_dead(index, now());
  asio::post(io_, [this, index, life = paths_[index].life] {
    lose_on_io(index, life,
               {EIO, name_of_path(index) +
                         ": a connection that owes answers carries nothing, not even a "
                         "heartbeat's; if others live, look for an MTU on the way that is too "
                         "small for large requests"});
  });
}

void ClientDriver::ready_on_io(unsigned index) {
  using Welcome = ClientSession::Welcome;
  Path& path = paths_[index];
  const auto refuse = [&](int error, const std::string& why) {
    lose_on_io(index, path.life, {error, name_of_path(index) + ": " + why});
  };
  switch (session_.judge(index)) {
    case Welcome::first:
      create_lanes_on_io(index);
      join_on_io(index);
      return up_on_io();
    case Welcome::joined:
      if (renewal_) break;
      return join_on_io(index);
    case Welcome::renewed:
      if (renewal_) break;
      return renew_on_io(index);
    case Welcome::left:
      log(LogLevel::info,
          name_of_path(index) + " still has a session that this client has left; it is told so");
      path.driver->core().say_goodbye();  // and closes the path, or the attempt takes too long
      return;
    case Welcome::stranger:
      return refuse(ESTALE,
                    "it has another session than the other paths (another server, or it "
                    "was restarted a moment ago)");
    case Welcome::changed:
      return fail_on_io(
          {ESTALE, name_of_path(index) + " came back with other limits (" +
                       shortage(session_.accepted(), session_.path(index).accepted()) +
                       "); those who have something open get EIO until they open it anew"});
    case Welcome::foreign:
      return refuse(ESTALE, another_server(session_.path(index).accepted().extension.server_id,
                                           session_.server_id()));
    case Welcome::unfit:
      return refuse(EPROTO,
                    "it cannot promise that a request is carried out once, which "
                    "require-ext demands");
  }
  path.held = true;
}

void ClientDriver::create_lanes_on_io(unsigned index) {
  for (ChangeBarrier* barrier : {&barrier_, &control_barrier_}) {
    barrier->on_open = [this, barrier] {
      asio::post(io_, [this, barrier] {
        if (closed_) return;
        if (!barrier->closed()) barrier->refuse(0);
        for_each_lane([](ClientLane& lane) { lane.resume(); });
        run_errand_on_io();  // to close what could not be closed
      });
    };
  }
  const auto slots = session_.path(index).slots_per_lane();
  control_lane_ = std::make_unique<ClientLane>(0, slots[0], &control_barrier_);
  control_lane_->keep_order();
  std::uint16_t first = slots[0];
  for (std::uint16_t cid = 1; cid < slots.size() && slots[cid] > 0; ++cid) {
    lanes_.push_back(std::make_unique<LaneDriver>(
        first, slots[cid], &barrier_, &control_barrier_, options_.spin,
        [this](unsigned path, unsigned life, std::string why) {
          asio::post(io_, [this, path, life, why = std::move(why)] {
            lose_on_io(path, life, {EIO, name_of_path(path) + ": " + why});
          });
        }));
    first = static_cast<std::uint16_t>(first + slots[cid]);
  }
}

void ClientDriver::join_on_io(unsigned index) {
  Path& path = paths_[index];
  ClientPath& core = path.driver->core();
  session_.connected(index, now());
  path.silent = false;
  core.set_control_handler(&control_lane_->handler(index));
  core.attach(*control_lane_, index, 0, path.driver->control());
  for (std::uint16_t cid = 1; cid <= lanes_.size(); ++cid) {
    auto connection = path.driver->take(cid);
    register_all_on_io(index, *connection);
    lanes_[cid - 1U]->attach(index, path.life, std::move(connection),
                             [&](ClientLane& lane, QueuePair& queue_pair) {
                               core.attach(lane, index, cid, queue_pair);
                             });
  }
  path.driver->flush();
  apply_use_on_io();
  schedule_look_on_io();
  log(news_level(),
      "session '" + options_.session_name + "': path to " + name_of_path(index) + " is up");
  if (core.access() != wire::PathAccess::optimized) log_access(index, news_level());
  run_errand_on_io();
  check_leaving_on_io(index);
}

void ClientDriver::log_access(unsigned index, LogLevel level) const {
  log(level, "session '" + options_.session_name + "': the server calls the path to " +
                 name_of_path(index) + " " + to_string(session_.path(index).access()));
}

void ClientDriver::access_changed_on_io(unsigned index) {
  if (session_.state(index) != PathState::connected) return;  // join_on_io() looks at it
  const bool worse = session_.access_changed(index, now());
  troubled_ = troubled_ || worse;
  log_access(index, worse ? LogLevel::warning : news_level());
  const bool accessible = session_.path(index).accessible();
  for_each_lane([&](ClientLane& lane) { lane.allow(index, accessible); });
  apply_use_on_io();
  schedule_look_on_io();
}

void ClientDriver::run_errand_on_io() {
  if (closed_ || errand_ || options_.keeper == nullptr || control_lane_->slot_count() == 0) return;
  errand_ = options_.keeper->errand();
  if (!errand_) return;
  errand_since_ = now();
  errand_->on_finish(
      [](void* context) {
        auto& self = *static_cast<ClientDriver*>(context);
        asio::post(self.io_, [&self] { self.errand_ended_on_io(); });
      },
      this);
  errand_->start(*control_lane_);
  flush_control_on_io();
}

void ClientDriver::errand_ended_on_io() {
  const auto errand = std::move(errand_);
  options_.keeper->errand_ended(*errand);
  if (errand->error() != EIO) run_errand_on_io();  // otherwise later: it may be over at once again
}

// ---- A path goes -------------------------------------------------------------------------------

void ClientDriver::lose_on_io(unsigned index, unsigned life, const Failure& failure,
                              EndedBy ended_by) {
  Path& path = paths_[index];
  if (closed_ || life != path.life || !path.driver) return;
  const bool was_connected = session_.state(index) == PathState::connected;
  note_pause_on_io();
  path.driver->close();
  path.driver.reset();
  path.held = false;
  if (renewal_ && renewal_->path == index && !std::exchange(renewal_->broken, true)) {
    renewal_->lane->shut_down(EIO);
  }
  const bool in_vain = was_connected && in_vain_on_io(index);
  if (was_connected && ended_by == EndedBy::trouble && lives_in_part_on_io(index)) {
    distrust_on_io(index);
  }
  tell_statistics(index);
  session_.lost(index, now(), failure.text, in_vain);
  if (session_.was_up()) {
    tell_of_end(index, was_connected, failure, ended_by);
    apply_use_on_io();  // for what goes over another path at once
  }
  for (auto& lane : lanes_) lane->detach(index);
  if (control_lane_) control_lane_->detach(index);
  session_.was_busy(now());
  if (!session_.was_up()) return first_attempt_failed_on_io(index, failure);
  flush_control_on_io();
  fail_overdue_on_io();
  schedule_look_on_io();
  check_leaving_on_io(index);
}

bool ClientDriver::lives_in_part_on_io(unsigned path) {
  unsigned silence = 0;
  for (auto& lane : lanes_) silence = std::max(silence, lane->silence(path));
  return session_.lives_in_part(path, silence);
}

void ClientDriver::distrust_on_io(unsigned index) {
  session_.distrust(index, now());
  if (session_.path_count() == 1) return;
  log(LogLevel::warning, "session '" + options_.session_name + "': path to " + name_of_path(index) +
                             " carries some connections only: it is not used for a while if "
                             "another path works");
}

/// Something went over the path, and nothing of it was answered.
bool ClientDriver::in_vain_on_io(unsigned path) {
  bool answered = false;
  bool unanswered = false;
  for_each_lane([&](ClientLane& lane) {
    answered = answered || lane.answered(path);
    unanswered = unanswered || lane.unanswered(path);
  });
  return unanswered && !answered;
}

/// Of the connections that carry I/O, before they are closed.
void ClientDriver::tell_statistics(unsigned index) const {
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    const std::string moved = lanes_[i]->statistics(index);
    if (moved.empty()) continue;
    log(LogLevel::debug, "session '" + options_.session_name + "': connection " +
                             std::to_string(i + 1) + " to " + name_of_path(index) + ": " + moved);
  }
}

/// What somebody has asked for is no trouble.
void ClientDriver::tell_of_end(unsigned index, bool was_connected, const Failure& failure,
                               EndedBy ended_by) {
  const std::string path =
      "session '" + options_.session_name + "': path to " + name_of_path(index);
  if (ended_by == EndedBy::command) {
    if (was_connected) log(LogLevel::info, path + " is closed: " + failure.text);
    return;
  }
  troubled_ = true;
  if (was_connected || !std::exchange(paths_[index].silent, true)) {
    log(LogLevel::warning, path + (was_connected ? " is lost: " : ": ") + failure.text);
  }
}

/// Later: whoever noticed something is on the stack.
void ClientDriver::check_leaving_on_io(unsigned index) {
  if (session_.leaving(index)) asio::post(io_, [this, index] { let_go_on_io(index); });
}

/// Each path is told of once. Why the only one refuses is what the session fails with.
void ClientDriver::tell_of_absence(unsigned index, const Failure& failure, bool may_come) {
  const bool alone = session_.path_count() == 1;
  if (!may_come && alone) return;
  troubled_ = true;
  std::ostringstream text;
  text << "session '" << options_.session_name << "': ";
  if (!alone) text << "path " << to_string(options_.paths[index]) << ": ";
  text << failure.text;
  if (may_come) {
    text << waiting_paths_on_io() << "; it is tried again until "
         << std::chrono::duration<double>{options_.connect_timeout}.count()
         << " s have passed (connect-timeout)";
  }
  log(LogLevel::warning, text.str());
}

/// Whoever may come yet is tried again until the deadline. The session fails before that when no
/// path can make it and one of them was refused; the first refusal is the user's reason. A path to
/// another server says nothing of this one.
void ClientDriver::first_attempt_failed_on_io(unsigned index, const Failure& failure) {
  const bool foreign = session_.foreign(index) && !session_.names_server(index);
  const bool may_come =
      foreign || (may_come_yet(failure.error) && session_.path(index).refusal() == 0);
  note_attempt_on_io(index, failure.text);
  if (!std::exchange(paths_[index].silent, true)) tell_of_absence(index, failure, may_come);
  if (foreign) {
    foreign_ = failure;
  } else if (may_come) {
    absent_ = failure;
  } else if (failure_.text.empty()) {
    const std::lock_guard lock{mutex_};
    failure_ = failure;
  }
  const bool refused = !failure_.text.empty();
  if (!refused) schedule_look_on_io();
  for (unsigned i = 0; i < session_.path_count(); ++i) {
    if (session_.state(i) == PathState::connecting) return;
  }
  if (refused) fail_on_io(Failure{failure_});
}

}  // namespace rtrs
