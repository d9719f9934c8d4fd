// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/refusal_log.hpp"

#include <chrono>
#include <iterator>
#include <set>
#include <string_view>

#include "rdma/audit_line.hpp"
#include "rdma/core/crowd.hpp"
#include "rdma/log_about.hpp"
#include "rdma/network.hpp"

namespace rtrs {
namespace {

constexpr Duration kPause = std::chrono::minutes{1};
/// Hosts and reasons that are kept apart. Further ones are counted as one.
constexpr std::size_t kMaxEntries = 256;
/// Of one host; the users that it names beyond are not told apart.
constexpr std::size_t kMaxOfHost = 16;
/// Hosts of one network of IPv6.
constexpr std::size_t kMaxOfNetwork = 16;

}  // namespace

void RefusalLog::say(LogLevel level, const std::string& peer, const std::string& why, Instant now) {
  const LogAbout about{{.event = "path_refused", .path = peer}};
  say_once(level, {name_of(peer), "", why}, peer + ": " + why, now);
}

void RefusalLog::audit(const AuthRefusal& refusal, Instant now) {
  const std::string user = ascii_of(refusal.user);
  const std::string line = audit_line("auth refused", {{"peer", refusal.peer},
                                                       {"listener", refusal.listener},
                                                       {"user", user},
                                                       {"how", refusal.how},
                                                       {"why", ascii_of(refusal.why)}});
  const std::string host = name_of(refusal.peer);
  Key key{host, user, refusal.how + ' ' + refusal.why};
  if (!entries_.contains(key) && tries_many(host)) key = {host, "", refusal.how};
  const LogAbout about{{.event = "auth_refused", .path = refusal.peer}};
  say_once(LogLevel::warning, std::move(key), line, now);
}

std::string RefusalLog::name_of(const std::string& peer) const {
  std::string host{host_of(peer)};
  std::string network = network_of_host(peer);
  if (network.empty()) return host;
  std::set<std::string_view> others;
  for (const auto& [key, entry] : entries_) {
    const std::string& other = std::get<0>(key);
    if (other == host) return host;
    if (network_of_host(other + ":0") == network) others.insert(other);
  }
  return others.size() < kMaxOfNetwork ? host : network;
}

bool RefusalLog::tries_many(const std::string& host) const {
  auto one = entries_.lower_bound(Key{host, "", ""});
  for (std::size_t n = 0; one != entries_.end() && std::get<0>(one->first) == host; ++one) {
    if (++n == kMaxOfHost) return true;
  }
  return false;
}

void RefusalLog::say_once(LogLevel level, Key key, const std::string& line, Instant now) {
  if (!log_) return;
  if (entries_.size() >= kMaxEntries && !entries_.contains(key)) {
    std::erase_if(entries_, [&](const auto& entry) { return now >= entry.second.said + kPause; });
    if (entries_.size() >= kMaxEntries) key = {};
  }
  const auto [at, is_new] = entries_.try_emplace(std::move(key));
  Entry& entry = at->second;
  if (!is_new && now < entry.said + kPause) {
    ++entry.unsaid;
    log_(LogLevel::debug, line);
    return;
  }
  const std::string more =
      entry.unsaid == 0 ? ""
                        : " (" + std::to_string(entry.unsaid) + " more like this were not logged)";
  entry = {now, 0};
  log_(level, line + more);
}

}  // namespace rtrs
