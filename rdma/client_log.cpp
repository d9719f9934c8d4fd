// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/client_log.hpp"

namespace rtrs {
namespace {

void settle(const std::string& host, ComplaintLog& log) {
  log.settle(host.empty() ? "other hosts" : host);
}

}  // namespace

ClientLog::~ClientLog() {
  for (const auto& [host, log] : hosts_) settle(host, *log);
}

void ClientLog::say(LogLevel level, const std::string& peer, const std::string& line,
                    ComplaintLog::Instant now) {
  if (log_) of(peer, now)->say(level, line, now);
}

std::shared_ptr<ComplaintLog> ClientLog::of(const std::string& peer, ComplaintLog::Instant now) {
  const std::lock_guard lock{mutex_};
  std::string host = peer.substr(0, peer.rfind(':'));
  if (hosts_.size() >= kMaxHosts && !hosts_.contains(host)) {
    forget_rested(now);
    if (hosts_.size() >= kMaxHosts) host.clear();
  }
  auto& log = hosts_[host];
  if (log == nullptr) log = std::make_shared<ComplaintLog>(log_, kAllowance);
  return log;
}

void ClientLog::forget_rested(ComplaintLog::Instant now) {
  std::erase_if(hosts_, [now](const auto& known) {
    if (!known.second->is_rested(now)) return false;
    settle(known.first, *known.second);
    return true;
  });
}

}  // namespace rtrs
