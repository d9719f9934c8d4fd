// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/session_host.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

namespace rtrs {

namespace asio = boost::asio;

SessionHost::SessionHost(Reactor& reactor, ServerSessionOptions options, ServerHandler& handler,
                         std::string peer, Identity identity, SessionEnvironment environment)
    : reactor_{reactor},
      environment_{std::move(environment)},
      session_{options, handler},
      linger_timer_{reactor.io()} {
  session_.reactor = &reactor;
  session_.peer = std::move(peer);
  session_.identity = std::move(identity);
  session_.on_lingering = [this] { on_lingering(); };
  session_.on_gone = [this] { on_gone(); };
}

SessionHost::~SessionHost() = default;

void SessionHost::log(LogLevel level, const std::string& text) const {
  if (!environment_.log) return;
  const std::string name = session_.name.empty() ? "" : " '" + session_.name + "'";
  environment_.log(level, "session" + name + " from " + session_.peer + ": " + text);
}

/// A client with a path that leads here by mistake comes again and again, and leaves when it
/// notices: that is logged once.
void SessionHost::pass_on(LogLevel level, const std::string& line) {
  const bool known = level == LogLevel::info && in_vain_ && session_.items().empty();
  environment_.log(known ? LogLevel::debug : level, line);
}

PathHost& SessionHost::add_path(const Arrival& arrival, const std::string& peer) {
  const auto path = arrival.path;
  ServerPathHooks hooks;
  hooks.admit = [this, path](std::string_view name) { return admit(path, name); };
  hooks.on_connected = [this] { close_older_life(); };
  hooks.on_closing = [this, path] {
    close_older_life();  // an admitted path may find no memory for its chunks
    environment_.on_path_closing(path, session_.over());
    if (session_.has_pending())
      judge_later();  // decisions pending for this path need not wait any
                      // more
  };
  hooks.on_pending = [this] { read_and_judge(); };
  hooks.on_shrunk = [this, path](std::uint64_t held) { environment_.on_path_shrunk(path, held); };
  hooks.on_gone = [this, path] { environment_.on_path_gone(path); };
  hooks.on_connection_closed = environment_.on_connection_closed;
  hooks.on_auth_refused = [this, entrance = arrival.options.entrance](AuthRefusal refusal) {
    environment_.on_auth_refused(std::move(refusal), entrance);
  };
  if (environment_.log) {
    hooks.log = [this](LogLevel level, const std::string& line) { pass_on(level, line); };
  }
  hooks.handshake_timeout = environment_.handshake_timeout;
  auto host =
      std::make_unique<PathHost>(reactor_, session_, arrival.options, peer, std::move(hooks));
  return *(paths_[path] = std::move(host));
}

void SessionHost::add(const Arrival& arrival, std::unique_ptr<Incoming> incoming) {
  const auto known = paths_.find(arrival.path);
  const bool closed = session_.over() || draining_ || (!arrival.new_path && known == paths_.end());
  if (closed) {
    // The client sees its connection closed and tries again.
    environment_.on_connection_closed();
    if (arrival.new_path) environment_.on_path_gone(arrival.path);
    return;
  }
  PathHost& path = arrival.new_path ? add_path(arrival, incoming->peer) : *known->second;
  path.add(arrival.cid, std::move(incoming));
}

void SessionHost::turn_away(Admission::PathId path) {
  const auto found = paths_.find(path);
  if (found == paths_.end()) return;
  found->second->close("others came while it had not finished its handshake", LogLevel::info);
}

PathRefusal SessionHost::admit(Admission::PathId path, std::string_view name) {
  // Its key may have gone while it shook hands. A reload ends the sessions that it finds.
  if (const Identity* const user = paths_.at(path)->identity(); user != nullptr) {
    if (const std::string why = environment_.withdrawn(*user); !why.empty()) {
      paths_.at(path)->tell_auth_refused(why);
      return {"its key or certificate was withdrawn", EACCES};
    }
  }
  const Admission::Admitted admitted = environment_.admit(path, name, paths_.at(path)->user());
  if (admitted.other_user) paths_.at(path)->tell_auth_refused(admitted.why_not);
  if (admitted.why_not != nullptr) return {admitted.why_not, admitted.error};
  if (std::exchange(lingering_, false)) linger_timer_.cancel();
  older_life_ = admitted.replaces;
  return {};
}

/// Not earlier than the new one is there, or the session might have no path for a moment.
void SessionHost::close_older_life() {
  const auto old = paths_.find(std::exchange(older_life_, 0));
  if (old == paths_.end()) return;
  old->second->close("the client has connected the path again", LogLevel::info);
}

/// See ServerSession::has_pending().
void SessionHost::read_and_judge() {
  if (judging_later_) return;
  const auto judged = session_.read_and_judge([this] {
    return std::ranges::all_of(paths_, [](auto& path) { return path.second->read(); });
  });
  if (judged == ServerSession::Judged::later) judge_later();
}

void SessionHost::judge_later() {
  if (std::exchange(judging_later_, true)) return;
  asio::post(reactor_.io(), [this] {
    judging_later_ = false;
    if (!session_.gone() && session_.has_pending()) read_and_judge();
  });
}

void SessionHost::on_lingering() {
  if (session_.idle()) environment_.on_idle();
  if (std::exchange(lingering_, true)) return;
  const bool again = std::exchange(in_vain_, session_.items().empty());
  if (!in_vain_) {
    log(LogLevel::info, "no path is left; the session waits for the client to come back");
  } else if (!again) {
    log(LogLevel::info,
        "the client left with nothing open (does a path of it lead here by mistake?); "
        "the session waits for it, and is silent when that happens again");
  }
  linger_timer_.set(environment_.linger, [this] {
    if (!in_vain_) log(LogLevel::info, "the client has not come back; the session is forgotten");
    session_.on_linger_expired();
  });
}

void SessionHost::on_gone() {
  linger_timer_.cancel();
  const auto& repeats = session_.repeats();
  if (repeats.attached + repeats.answered + repeats.dropped > 0) {
    log(LogLevel::info, "of the requests that were sent again, " +
                            std::to_string(repeats.attached) + " were still executing, " +
                            std::to_string(repeats.answered) + " had ended and " +
                            std::to_string(repeats.dropped) + " came too late");
  }
  environment_.on_gone();
}

ServerSessionStatus SessionHost::status() {
  ServerSessionStatus status{.name = session_.name,
                             .uuid = session_.options().uuid,
                             .identity = session_.identity,
                             .features = session_.options().features,
                             .paths = {},
                             .requests = session_.executing(),
                             .repeats = session_.repeats(),
                             .items = session_.items()};
  for (const auto& [id, path] : paths_) {
    if (!path->closed()) status.paths.push_back(path->status());
  }
  return status;
}

void SessionHost::drain() {
  draining_ = true;
  session_.end();
  for (auto& [id, path] : paths_) path->drain();
}

void SessionHost::close(const std::string& why, LogLevel level) {
  session_.end();
  for (auto& [id, path] : paths_) path->close(why, level);
}

void SessionHost::close_path(const std::string& peer, const std::string& why) {
  for (auto& [id, path] : paths_) {
    if (!path->closed() && path->status().peer == peer) path->close(why, LogLevel::warning);
  }
}

}  // namespace rtrs
