// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/evict.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "bridge/daemon/logging.hpp"
#include "bridge/protocol/printable.hpp"
#include "rdma/log_about.hpp"

namespace rnbd {
namespace {

using Sessions = std::vector<rtrs::ServerSessionStatus>;
using Answer = tl::expected<Json, rtrs::Failure>;

/// Less than rnbd-ctl waits for an answer.
constexpr std::chrono::seconds kTimeToDrain{20};
constexpr std::chrono::milliseconds kLookForRest{50};

/// "SESSION|DEVICE [--force]" in parts.
struct Order {
  std::string name;
  bool force = false;
};
Order order_in(std::string argument) {
  constexpr std::string_view kForce = " --force";
  const bool force = argument.ends_with(kForce);
  if (force) argument.resize(argument.size() - kForce.size());
  argument.erase(argument.find_last_not_of(" \t") + 1);
  return {argument, force};
}

bool has_open(const rtrs::ServerSessionStatus& session, const std::string& device) {
  return std::ranges::find(session.items, device, &rtrs::SessionItem::name) != session.items.end();
}

/// Those that are called so; none: those that have a device of this name open.
Sessions meant_by(const std::string& name, const Sessions& all) {
  Sessions found;
  std::ranges::copy_if(all, std::back_inserter(found),
                       [&](const auto& session) { return session.name == name; });
  if (!found.empty()) return found;
  std::ranges::copy_if(all, std::back_inserter(found),
                       [&](const auto& session) { return has_open(session, name); });
  return found;
}

/// "'vm1' (10.0.0.5:40312)"
std::string whom(const rtrs::ServerSessionStatus& session) {
  const std::string peer = session.paths.empty() ? "away" : session.paths.front().peer;
  return in_quotes(session.name) + " (" + peer + ")";
}

/// The devices that would be lost, "" if there are none.
std::string use_of(const Sessions& sessions) {
  std::string text;
  for (const auto& session : sessions) {
    for (const rtrs::SessionItem& item : session.items) {
      if (item.how == "ro" || item.how == "unclaimed") continue;
      text += (text.empty() ? "" : "; ") + whom(session) + " has " + in_quotes(item.name) +
              " open " + item.how + ", with " + std::to_string(item.requests) +
              " requests under way";
    }
  }
  return text;
}

tl::unexpected<rtrs::Failure> failure(int error, std::string text) {
  return tl::unexpected(rtrs::Failure{error, std::move(text)});
}

Answer evict(rtrs::Server& server, ExportCatalogue& catalogue, const Order& order) {
  const Sessions sessions = meant_by(order.name, server.sessions());
  if (sessions.empty()) {
    return failure(ENOENT, "no session is called " + in_quotes(order.name) +
                               ", and none has such a device open; `status` tells of all");
  }
  if (const std::string use = use_of(sessions); !use.empty() && !order.force) {
    return failure(EBUSY, use +
                              "; if you write --force, all of its I/O fails with EIO, also that of "
                              "a file system that is mounted from it, until that is unmounted and "
                              "the disk is mapped or opened anew");
  }
  Json ended = Json::array();
  for (const auto& session : sessions) {
    // This comes first, so that the session cannot return in between.
    if (auto done = catalogue.reservations().expel(session.uuid); !done)
      return failure(EIO, done.error());
    server.end_session(session.uuid, session.identity.name, "evicted by command");
    const rtrs::LogAbout about{{.event = "session_evicted", .session = session.name}};
    log_function()(rtrs::LogLevel::warning, "evicted " + whom(session) + " by command");
    ended.push_back(session.name);
  }
  return Json{{"sessions_ended", std::move(ended)}};
}

Answer disconnect(rtrs::Server& server, const std::string& client) {
  for (const auto& session : server.sessions()) {
    for (const auto& path : session.paths) {
      if (path.peer != client) continue;
      server.end_path(client, "disconnected by command");
      return Json::object();
    }
  }
  return failure(ENOENT, "no path comes from " + in_quotes(client) +
                             "; `status` tells of all, in the column CLIENT");
}

/// "" or the sessions that still send requests.
std::string who_is_left(const Sessions& sessions, const std::vector<bool>& leaving) {
  std::string text;
  for (const auto& session : sessions) {
    const bool sends = std::ranges::any_of(session.paths, [&](const auto& path) {
      return leaving.at(path.listener) && (path.requests > 0 || !path.access_known);
    });
    if (sends) text += (text.empty() ? "" : ", ") + whom(session);
  }
  return text;
}

/// Which listeners are meant; none: there is no such one. Those that wait have no place.
std::vector<bool> listeners_meant(rtrs::Server& server, const std::string& wanted) {
  std::vector<bool> meant;
  for (const auto& listener : server.listeners()) {
    meant.push_back(wanted.empty() || listener.address == wanted);
  }
  return std::ranges::find(meant, true) == meant.end() ? std::vector<bool>{} : meant;
}

Answer drain(rtrs::Server& server, const std::string& wanted) {
  std::vector<bool> leaving = listeners_meant(server, wanted);
  if (leaving.empty()) {
    return failure(ENOENT, "there is no listener " + in_quotes(wanted) + "; `status` tells of all");
  }
  for (unsigned i = 0; i < leaving.size(); ++i) {
    if (leaving[i]) server.set_access(i, rtrs::wire::PathAccess::inaccessible);
  }
  const auto limit = std::chrono::steady_clock::now() + kTimeToDrain;
  for (;;) {
    const Sessions sessions = server.sessions();
    leaving.resize(server.listeners().size());  // there may be more listeners now
    const std::string left = who_is_left(sessions, leaving);
    if (left.empty()) return Json::object();
    if (std::chrono::steady_clock::now() >= limit) {
      return failure(EAGAIN,
                     "these have requests under way, or do not know that they shall send "
                     "none (Linux's clients never do): " +
                         left);
    }
    std::this_thread::sleep_for(kLookForRest);
  }
}

}  // namespace

std::vector<ControlCommand> eviction_commands(rtrs::Server& server, ExportCatalogue& catalogue) {
  return {
      {"evict", "SESSION|DEVICE [--force]",
       "end this session, or those that have the device open; --force also those that write",
       [&](const std::string& argument) { return evict(server, catalogue, order_in(argument)); }},
      {"disconnect", "CLIENT",
       "close the path that comes from this address; the client may connect it again",
       [&](const std::string& argument) { return disconnect(server, argument); }},
      {"drain", "[LISTENER]",
       "tell clients to send nothing over this listener, or any, and wait until they do",
       [&](const std::string& argument) { return drain(server, argument); }}};
}

}  // namespace rnbd
