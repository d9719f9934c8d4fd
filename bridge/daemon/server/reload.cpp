// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/reload.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "bridge/daemon/logging.hpp"
#include "bridge/daemon/notify.hpp"
#include "bridge/daemon/shutdown.hpp"
#include "bridge/protocol/printable.hpp"
#include "bridge/server/attempt.hpp"
#include "bridge/server/rights.hpp"
#include "rdma/transport/tls/credentials.hpp"

namespace rnbd {

/// The rights to exports; the settings must live as long. Sessions and exports may be many.
class RightsByName {
 public:
  /// Those of `next`, and of exports that `now` alone has.
  RightsByName(const Settings& next, const Settings& now) : others_{next.search_rights} {
    for (const Settings* settings : {&next, &now}) {
      for (const ExportSpecification& each : settings->exports)
        of_.try_emplace(each.name, &each.rights);
    }
  }

  const Rights& of(const std::string& name) const {
    const auto found = of_.find(name);
    return found != of_.end() ? *found->second : others_;
  }

 private:
  std::unordered_map<std::string_view, const Rights*> of_;
  const Rights& others_;
};

namespace {

std::string joined(const std::vector<std::string>& all, const char* between) {
  std::string text;
  for (const std::string& each : all) text += (text.empty() ? "" : between) + each;
  return text;
}

std::string peer_of(const rtrs::ServerSessionStatus& session) {
  return session.paths.empty() ? std::string{} : session.paths.front().peer;
}

/// "session 'vm1' (host1, 10.0.0.7:40112)"
std::string name_of(const rtrs::ServerSessionStatus& session) {
  std::string about = session.identity.name;
  const std::string peer = peer_of(session);
  if (!peer.empty()) about += (about.empty() ? "" : ", ") + peer;
  return "session " + in_quotes(session.name) + (about.empty() ? "" : " (" + about + ")");
}

/// "" or an export that the session has open and may not any more.
std::string forbidden(const RightsByName& rights, const rtrs::ServerSessionStatus& session) {
  const User user{session.identity.name, peer_of(session)};
  for (const rtrs::SessionItem& item : session.items) {
    const auto permission = permission_of(rights.of(item.name), user);
    const bool reads = item.how == wire::to_string(wire::AccessMode::read_only);
    const bool fine = permission == Permission::write || (reads && permission == Permission::read);
    if (!fine) return "its right to " + in_quotes(item.name) + " was withdrawn";
  }
  return "";
}

constexpr const char* kNewLimits = "sessions have other limits";
constexpr const char* kNewDirections = "clients are told of other addresses or referrals";

/// For the log.
std::string summary(const ReloadPlan& plan, std::size_t ended) {
  std::string text;
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (names.empty()) return;
    text += (text.empty() ? "" : "; ") + std::string{what} + ' ' + joined(names, ", ");
  };
  add("added", plan.added);
  add("changed", plan.changed);
  add("removed", plan.removed);
  if (plan.directed_anew) text += (text.empty() ? "" : "; ") + std::string{kNewDirections};
  if (plan.sessions_limited_anew) text += (text.empty() ? "" : "; ") + std::string{kNewLimits};
  add("need a restart:", plan.needs_restart);
  if (ended > 0) text += (text.empty() ? "" : "; ") + ("sessions ended: " + std::to_string(ended));
  return text.empty() ? "nothing has changed" : text;
}

/// The reason why a key of the session is not valid any more: the key of its first path, or of a
/// later path of the same user. "": all keys are valid.
std::string withdrawn(const rtrs::tls::Credentials& keys,
                      const rtrs::ServerSessionStatus& session) {
  std::string why = keys.withdrawn(session.identity);
  for (const auto& path : session.paths) {
    for (const rtrs::Identity& identity : path.identities) {
      if (why.empty()) why = keys.withdrawn(identity);
    }
  }
  return why;
}

}  // namespace

Reloader::Reloader(const Invocation& invocation, Serving serving)
    : words_{invocation.words}, serving_{std::move(serving)}, settings_{invocation.settings} {
  thread_ = std::jthread{[this](const std::stop_token& end) { run(end); }};
  on_hangup([this] { wake(); });
}

Reloader::~Reloader() { on_hangup({}); }

void Reloader::wake() {
  const std::lock_guard lock{mutex_};
  wanted_ = true;
  woken_.notify_one();
}

void Reloader::run(const std::stop_token& end) {
  std::unique_lock lock{mutex_};
  while (woken_.wait(lock, end, [this] { return wanted_; })) {
    wanted_ = false;
    lock.unlock();
    notify_manager("RELOADING=1\n");
    const int lacks = attempt([&] {
      const auto done = reload({});
      if (!done) log_function()(rtrs::LogLevel::error, "reload: " + done.error().text);
    });
    if (lacks != 0) {
      log_function()(rtrs::LogLevel::error,
                     std::string{"reload: "} + std::strerror(lacks) + "; reload again");
    }
    notify_manager("READY=1\n");
    lock.lock();
  }
}

/// The same command line, and the file as it is now.
tl::expected<Settings, std::string> Reloader::read() const {
  std::vector<const char*> arguments;
  arguments.reserve(words_.size());
  for (const std::string& word : words_) arguments.push_back(word.c_str());
  auto invocation = parse_command_line(static_cast<int>(arguments.size()), arguments.data());
  if (invocation) return std::move(invocation->settings);
  // A line for each mistake.
  std::vector<std::string> mistakes;
  std::istringstream lines{invocation.error().text};
  for (std::string line; std::getline(lines, line);) {
    constexpr std::string_view kProgram = "rnbd-server: ";
    if (line.starts_with(kProgram)) line.erase(0, kProgram.size());
    mistakes.push_back(std::move(line));
  }
  return tl::unexpected(joined(mistakes, "; "));
}

std::vector<std::string> Reloader::holders(const std::vector<std::string>& exports) const {
  std::vector<std::string> all;
  if (exports.empty()) return all;
  const std::unordered_set<std::string_view> wanted{exports.begin(), exports.end()};
  for (const auto& session : serving_.server.sessions()) {
    for (const rtrs::SessionItem& item : session.items) {
      if (!wanted.contains(item.name)) continue;
      all.push_back("export " + in_quotes(item.name) + " is open: " + name_of(session) + " has it");
    }
  }
  return all;
}

/// Errors: of the keys.
tl::expected<std::vector<Reloader::Ending>, std::string> Reloader::to_end(
    const RightsByName& rights) const {
  std::shared_ptr<const rtrs::tls::Credentials> keys;
  if (!settings_.tls_keys.none()) {
    auto loaded = rtrs::tls::Credentials::load(settings_.tls_keys, rtrs::tls::Role::server);
    if (!loaded) return tl::unexpected(loaded.error());
    keys = *std::move(loaded);
  }
  std::vector<Ending> all;
  for (auto& session : serving_.server.sessions()) {
    std::string why = keys != nullptr ? withdrawn(*keys, session) : "";
    if (why.empty()) why = forbidden(rights, session);
    if (!why.empty()) all.push_back({std::move(session), std::move(why)});
  }
  return all;
}

tl::expected<Json, rtrs::Failure> Reloader::reload(const How& how) {
  const std::lock_guard one_at_a_time{reload_mutex_};
  const auto fail = [](int error, const std::vector<std::string>& why) {
    return tl::unexpected(rtrs::Failure{error, "nothing was changed: " + joined(why, "; ")});
  };
  auto next = read();
  if (!next) return fail(EINVAL, {next.error()});
  ReloadPlan plan = plan_reload(settings_, *next);
  // Those that go are judged by the rights that they had.
  const RightsByName rights{*next, settings_};
  auto ending = to_end(rights);
  if (!ending) plan.faults.push_back(ending.error());
  const bool mistaken = !plan.faults.empty();
  if (!how.force) std::ranges::move(holders(plan.must_be_free), std::back_inserter(plan.faults));
  const auto opened = serving_.catalogue.change(plan.change, how.check || !plan.faults.empty());
  std::ranges::copy(opened, std::back_inserter(plan.faults));
  if (!plan.faults.empty()) return fail(mistaken ? EINVAL : EBUSY, plan.faults);
  // Again: an OPEN may have ended before the new rights were there.
  if (auto now = to_end(rights); now && !how.check) ending = std::move(now);

  Json sessions = Json::array();
  for (const Ending& each : *ending) sessions.push_back(each.session.name);
  Json answer{{"checked_only", how.check},
              {"added", plan.added},
              {"changed", plan.changed},
              {"removed", plan.removed},
              {"kept", plan.kept},
              {"session_limits_changed", plan.sessions_limited_anew},
              {"directions_changed", plan.directed_anew},
              {"needs_restart", plan.needs_restart},
              {"sessions_ended", std::move(sessions)}};
  if (how.check) return answer;
  settings_ = after_reload(std::move(settings_), *std::move(next));
  serving_.handler.limit_sessions(settings_.session_limits);
  serving_.handler.retire_queues();
  for (const Ending& each : *ending) {
    serving_.server.end_session(each.session.uuid, each.session.identity.name, each.why);
  }
  log_function()(rtrs::LogLevel::info, "reloaded: " + summary(plan, ending->size()));
  serving_.on_change();
  return answer;
}

ControlCommand Reloader::command() {
  return {"reload", "[--check] [--force]",
          "read the configuration and the keys again; --check only says what that would do, "
          "--force also removes exports that are open",
          [this](const std::string& argument) -> tl::expected<Json, rtrs::Failure> {
            How how;
            std::istringstream words{argument};
            for (std::string word; words >> word;) {
              if (word == "--check") {
                how.check = true;
              } else if (word == "--force") {
                how.force = true;
              } else {
                return tl::unexpected(
                    rtrs::Failure{EINVAL, in_quotes(word) + " is neither --check nor --force"});
              }
            }
            return reload(how);
          }};
}

}  // namespace rnbd
