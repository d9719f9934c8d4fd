// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/evict.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>

#include "bridge/daemon/logging.hpp"
#include "bridge/protocol/printable.hpp"
#include "bridge/server/rights.hpp"
#include "rdma/duration.hpp"
#include "rdma/log_about.hpp"

namespace rnbd {
namespace {

using Sessions = std::vector<rtrs::ServerSessionStatus>;
using Answer = tl::expected<Json, rtrs::Failure>;

/// Less than rnbd-ctl waits for an answer.
constexpr std::chrono::seconds kTimeToDrain{20};
constexpr std::chrono::milliseconds kLookForRest{50};

/// "SESSION|DEVICE [for TIME] [--force]" in parts.
struct Order {
  std::string name;
  bool force = false;
  std::chrono::seconds time{0};  ///< 0: until it is let in again
};
tl::expected<Order, rtrs::Failure> order_in(std::string argument) {
  const auto trim = [&] { argument.erase(argument.find_last_not_of(" \t") + 1); };
  Order order;
  for (trim();; trim()) {
    constexpr std::string_view kForce = " --force", kFor = " for ";
    if (argument.ends_with(kForce)) {
      order.force = true;
      argument.resize(argument.size() - kForce.size());
      continue;
    }
    const std::size_t at = argument.rfind(kFor);
    if (at == std::string::npos || argument.find(' ', at + kFor.size()) != std::string::npos) break;
    const auto time = rtrs::parse_duration(std::string_view{argument}.substr(at + kFor.size()));
    if (!time || *time < std::chrono::seconds{1}) {
      return tl::unexpected(
          rtrs::Failure{EINVAL, "write for with a time of a second or more, as 30s or 2h"});
    }
    order.time = std::chrono::ceil<std::chrono::seconds>(*time);
    argument.resize(at);
  }
  order.name = argument;
  return order;
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

/// The end of its time, or "readmit".
std::string until_text(const EvictedClient& client) {
  return client.until == 0 ? "readmit" : utc_text(client.until);
}

Json told_of(const EvictedClient& client) {
  return {{"client", client.who},
          {"session", client.session},
          {"until", until_text(client)},
          {"let_in_by", "readmit " + client.who}};
}

/// The name that it has proven, or else all addresses that it comes from. These are that of the
/// path that made the session, which may be away, and those of its paths.
std::vector<std::string> clients_of(const rtrs::ServerSessionStatus& session) {
  std::vector<std::string> all;
  const auto add = [&](const std::string& peer) {
    std::string who = who_is({session.identity.name, peer});
    if (!who.empty() && std::ranges::find(all, who) == all.end()) all.push_back(std::move(who));
  };
  add(session.peer);
  for (const auto& path : session.paths) add(path.peer);
  return all;
}

std::int64_t until_of(std::chrono::seconds time) {
  return time.count() == 0 ? 0 : std::time(nullptr) + time.count();
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
  Json ended = Json::array(), out = Json::array();
  std::string unkept;  // the first obstacle; it is no reason to let a client go on
  const auto note = [&](const tl::expected<void, std::string>& kept) {
    if (!kept && unkept.empty()) unkept = kept.error();
  };
  for (const auto& session : sessions) {
    const rtrs::wire::Uuid number = number_of_user(session.uuid, session.identity.name);
    // This comes first, so that neither the session nor its client can return in between.
    for (const std::string& who : clients_of(session)) {
      const EvictedClient client{who, session.name, until_of(order.time)};
      note(catalogue.evicted().add(client));
      out.push_back(told_of(client));
    }
    note(catalogue.reservations().expel(number));
    server.end_session(session.uuid, session.identity.name, "evicted by command");
    const rtrs::LogAbout about{{.event = "session_evicted", .session = session.name}};
    log_function()(rtrs::LogLevel::warning, "evicted " + whom(session) + " by command");
    ended.push_back(session.name);
  }
  if (!unkept.empty()) {
    return failure(EIO,
                   "the sessions have ended and their clients are out, but the next start of the "
                   "server may not know that: " +
                       unkept);
  }
  return Json{{"sessions_ended", std::move(ended)}, {"evicted", std::move(out)}};
}

/// "; @10.0.0.5 (session 'vm1') is"
std::string who_is_out(const EvictedClients& clients) {
  const std::vector<EvictedClient> out = clients.all();
  std::string text;
  for (const EvictedClient& each : out)
    text += (text.empty() ? "; " : ", ") + each.who + " (session " + in_quotes(each.session) + ")";
  return out.empty() ? ", and nobody else is" : text + (out.size() == 1 ? " is" : " are");
}

Answer readmit(ExportCatalogue& catalogue, const std::string& name) {
  const auto let_in = catalogue.evicted().readmit(name);
  if (!let_in) return failure(EIO, let_in.error());
  if (let_in->empty() && name != "all")
    return failure(ENOENT, in_quotes(name) + " is not out" + who_is_out(catalogue.evicted()));
  for (const EvictedClient& each : *let_in)
    log_function()(rtrs::LogLevel::info, "let in again by command: " + each.who);
  return Json::object();
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

std::string utc_text(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

Json status_of_evicted(const EvictedClients& clients) {
  Json all = Json::array();
  for (const EvictedClient& each : clients.all()) all.push_back(told_of(each));
  return all;
}

std::vector<ControlCommand> eviction_commands(rtrs::Server& server, ExportCatalogue& catalogue) {
  return {
      {"evict", "SESSION|DEVICE [for TIME] [--force]",
       "end this session, or those that have the device open, and let their clients open nothing "
       "until readmit, or for a time; --force also those that write",
       [&](const std::string& argument) -> Answer {
         const auto order = order_in(argument);
         return order ? evict(server, catalogue, *order) : tl::unexpected(order.error());
       }},
      {"readmit", "CLIENT|SESSION|all", "let clients in again that were evicted",
       [&](const std::string& argument) { return readmit(catalogue, argument); }},
      {"disconnect", "CLIENT",
       "close the path that comes from this address; the client may connect it again",
       [&](const std::string& argument) { return disconnect(server, argument); }},
      {"drain", "[LISTENER]",
       "tell clients to send nothing over this listener, or any, and wait until they do",
       [&](const std::string& argument) { return drain(server, argument); }}};
}

}  // namespace rnbd
