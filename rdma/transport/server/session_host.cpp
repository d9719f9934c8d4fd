// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/server/session_host.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <exception>
#include <utility>

#include "rdma/log_about.hpp"
#include "rdma/transport/clock.hpp"
#include "rdma/transport/sure.hpp"

namespace rtrs {

SessionHost::SessionHost(SessionEnvironment& server, Admission::SessionId number, Reactor& reactor,
                         const ServerSessionOptions& options, ServerMachineOptions times,
                         ServerHandler& handler, const Incoming& first)
    : server_{server},
      number_{number},
      reactor_{reactor},
      machine_{options, times, handler, *this},
      alarm_{reactor.alarms()} {
  session().reactor = &reactor;
  session().peer = first.peer;
  session().identity = first.identity;
}

SessionHost::~SessionHost() = default;

void SessionHost::log(LogLevel level, const char* event, const std::string& text) const {
  const ServerSession& session = machine_.session();
  const std::string name = session.name.empty() ? "" : " '" + session.name + "'";
  const LogAbout about{{.event = event, .session = session.name}};
  server_.log_of_client(level, session.peer,
                        "session" + name + " from " + session.peer + ": " + text);
}

/// A client with a path that leads here by mistake comes again and again, and leaves when it
/// notices: that is logged once.
void SessionHost::log_of_path(LogLevel level, const std::string& line) {
  const bool known = level == LogLevel::info && in_vain_ && session().items().empty();
  server_.log_of_client(known ? LogLevel::debug : level, session().peer, line);
}

void SessionHost::report(const ServerEvent& event) {
  machine_.handle(event, now());
  set_alarm();
}

void SessionHost::set_alarm() {
  const Instant due = machine_.next_deadline();
  if (due == std::exchange(alarm_at_, due)) return;
  if (due == Instant::max()) return alarm_.cancel();
  // Heartbeats of clients come as often as this looks for them: the loop is awake for one then.
  // From a silent client none will come, and the slack of all its intervals would add up.
  constexpr Duration kMostSlack = std::chrono::milliseconds{100};
  const Duration delay = due - now();
  const auto go_off = [this] {
    alarm_at_ = Instant::max();
    machine_.handle_timeout(now());
    set_alarm();
  };
  const Duration slack = machine_.has_silent_path()
                             ? Duration::zero()
                             : std::clamp(delay / 8, Duration::zero(), kMostSlack);
  surely([&] { alarm_.set(delay, go_off, slack); });
}

void SessionHost::add_path(const Arrival& arrival, const std::string& peer) {
  const PathId path = arrival.path;
  std::unique_ptr<PathHost>& host = paths_[path];
  ServerMachine::Path& place = machine_.add(path, arrival.options, now());
  set_alarm();
  host = std::make_unique<PathHost>(server_, number_, *this, machine_, place, peer);
}

/// The path has begun nothing; a session that was made for it ends.
void SessionHost::give_up(PathId path) {
  paths_.erase(path);
  machine_.forget(path);
  server_.on_path_gone({number_, path}, reactor_);
  if (!session().is_up()) report({.kind = ServerEvent::Kind::end_all});
}

void SessionHost::add(const Arrival& arrival, std::unique_ptr<Incoming> incoming) {
  if (!machine_.takes(arrival.path, arrival.new_path)) {
    // The client sees its connection closed and tries again.
    server_.on_connection_closed();
    if (arrival.new_path) server_.on_path_gone({number_, arrival.path}, reactor_);
    return;
  }
  if (arrival.new_path) {
    try {
      add_path(arrival, incoming->peer);
    } catch (const std::exception& lack) {
      incoming->reject(wire::encode_reject(ENOMEM));
      tell_if_possible([&] {
        log(LogLevel::error, "path_lacks_memory",
            std::string{"refused a path: this server lacks what that takes: "} + lack.what());
      });
      server_.on_connection_closed();
      return give_up(arrival.path);
    }
  }
  paths_.at(arrival.path)->add(arrival.cid, std::move(incoming));
}

void SessionHost::forget(PathId path) {
  paths_.erase(path);
  machine_.forget(path);
}

Admission::Admitted SessionHost::admit(PathId id, std::string_view name) {
  const PathHost& path = *paths_.at(id);
  // The key of a path may have gone while it shook hands. A reload ends the sessions that it finds.
  for (const Identity& user : path.identities()) {
    if (const std::string why = server_.withdrawn(user); !why.empty()) {
      path.report_auth_refused(why);
      return {.why_not = "its key or certificate was withdrawn", .error = EACCES};
    }
  }
  const Admission::Admitted admitted = server_.admit({number_, id}, name, path.user());
  if (admitted.other_user) path.report_auth_refused(admitted.why_not);
  return admitted;
}

void SessionHost::let_others_go() {
  post_surely(reactor_.io(), [this] { report({.kind = ServerEvent::Kind::others_went}); });
}

void SessionHost::lingers() {
  const bool again = std::exchange(in_vain_, session().items().empty());
  tell_if_possible([&] {
    if (!in_vain_) {
      log(LogLevel::info, "session_waits",
          "no path is left; the session waits for the client to come back");
    } else if (!again) {
      log(LogLevel::info, "session_waits",
          "the client left with nothing open (does a path of it lead here by mistake?); "
          "the session waits for it, and is silent when that happens again");
    }
  });
}

void SessionHost::forgotten() {
  if (in_vain_) return;
  tell_if_possible([&] {
    log(LogLevel::info, "session_forgotten",
        "the client has not come back; the session is forgotten");
  });
}

void SessionHost::gone() {
  const auto& repeats = this->repeats();
  if (repeats.attached + repeats.answered + repeats.dropped > 0) {
    tell_if_possible([&] {
      log(LogLevel::info, "requests_repeated",
          "of the requests that were sent again, " + std::to_string(repeats.attached) +
              " were still executing, " + std::to_string(repeats.answered) + " had ended and " +
              std::to_string(repeats.dropped) + " came too late");
    });
  }
  server_.on_session_gone(number_, reactor_);
}

ServerSessionStatus SessionHost::status() {
  ServerSessionStatus status{.name = session().name,
                             .uuid = session().options().uuid,
                             .identity = session().identity,
                             .peer = session().peer,
                             .features = session().options().features,
                             .paths = {},
                             .requests = session().executing(),
                             .repeats = session().repeats(),
                             .items = session().items()};
  for (const auto& [id, path] : paths_) {
    if (path->open()) status.paths.push_back(path->status());
  }
  return status;
}

void SessionHost::close(const std::string& why) {
  report(
      {.kind = ServerEvent::Kind::end_all, .end = {.kind = PathEnd::Kind::command, .text = why}});
}

void SessionHost::close_path(const std::string& peer, const std::string& why) {
  for (auto& [id, path] : paths_) {
    if (!path->open() || path->status().peer != peer) continue;
    report({.kind = ServerEvent::Kind::end_path,
            .path = id,
            .end = {.kind = PathEnd::Kind::command, .text = why}});
  }
}

}  // namespace rtrs
