// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/client_log.hpp"

#include <algorithm>
#include <utility>

#include "rdma/network.hpp"

namespace rtrs {
namespace {

void settle(const std::string& host, ComplaintLog& log) {
  log.settle(host.empty() ? "other hosts" : host);
}

}  // namespace

ClientLog::~ClientLog() {
  for (const auto& [name, host] : hosts_) settle(name, *host.log);
}

void ClientLog::say(LogLevel level, const std::string& peer, const std::string& line,
                    ComplaintLog::Instant now) {
  if (log_) of(peer, now)->say(level, line, now);
}

std::shared_ptr<ComplaintLog> ClientLog::of(const std::string& peer, ComplaintLog::Instant now) {
  const std::lock_guard lock{mutex_};
  std::string name = peer.substr(0, peer.rfind(':'));
  std::string network;
  if (!hosts_.contains(name)) {
    network = network_of_host(peer);
    if (hosts_.size() >= kMaxHosts || is_crowded(network)) forget_rested(now);
    if (is_crowded(network)) name = std::exchange(network, "");
    if (hosts_.size() >= kMaxHosts && !hosts_.contains(name)) name = network = "";
  }
  Host& host = hosts_[name];
  if (host.log == nullptr) host = {std::make_shared<ComplaintLog>(log_, kAllowance), network};
  return host.log;
}

bool ClientLog::is_crowded(const std::string& network) const {
  if (network.empty()) return false;
  const auto count = std::ranges::count_if(
      hosts_, [&](const auto& known) { return known.second.network == network; });
  return count >= static_cast<std::ptrdiff_t>(kMaxHostsOfNetwork);
}

void ClientLog::forget_rested(ComplaintLog::Instant now) {
  std::erase_if(hosts_, [now](const auto& known) {
    if (!known.second.log->is_rested(now)) return false;
    settle(known.first, *known.second.log);
    return true;
  });
}

}  // namespace rtrs
