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

constexpr LineLimit::Allowance kOnceAMinute{1, std::chrono::minutes{1}};
/// Hosts and reasons that are kept apart. Further ones are counted as one.
constexpr std::size_t kMaxEntries = 256;
/// Users and reasons of one host; the users that it names beyond are not told apart.
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
  if (!limits_.contains(key) && tries_many(host)) key = {host, "", refusal.how};
  const LogAbout about{{.event = "auth_refused", .path = refusal.peer}};
  say_once(LogLevel::warning, std::move(key), line, now);
}

std::string RefusalLog::name_of(const std::string& peer) const {
  std::string host{host_of(peer)};
  std::string network = network_of_host(peer);
  if (network.empty()) return host;
  std::set<std::string_view> others;
  for (const auto& [key, limit] : limits_) {
    const std::string& other = std::get<0>(key);
    if (other == host) return host;
    if (network_of_host(other + ":0") == network) others.insert(other);
  }
  return others.size() < kMaxOfNetwork ? host : network;
}

bool RefusalLog::tries_many(const std::string& host) const {
  auto one = limits_.lower_bound(Key{host, "", ""});
  for (std::size_t n = 0; one != limits_.end() && std::get<0>(one->first) == host; ++one) {
    if (++n == kMaxOfHost) return true;
  }
  return false;
}

void RefusalLog::say_once(LogLevel level, Key key, const std::string& line, Instant now) {
  if (!log_) return;
  const LineLimit::Time time = now.time_since_epoch();
  if (limits_.size() >= kMaxEntries && !limits_.contains(key)) {
    std::erase_if(limits_, [&](const auto& known) { return known.second.is_rested(time); });
    if (limits_.size() >= kMaxEntries) key = {};
  }
  LineLimit& limit = limits_.try_emplace(std::move(key), kOnceAMinute).first->second;
  const auto left_out = limit.take(time);
  if (!left_out) return log_(LogLevel::debug, line);
  const std::string more =
      *left_out == 0 ? "" : " (" + std::to_string(*left_out) + " more like this were not logged)";
  log_(level, line + more);
}

}  // namespace rtrs
