#include "rdma/client_log.hpp"

namespace rtrs {

void ClientLog::say(LogLevel level, const std::string& peer, const std::string& line,
                    ComplaintLog::Instant now) {
  if (log_) of(peer, now)->say(level, line, now);
}

std::shared_ptr<ComplaintLog> ClientLog::of(const std::string& peer, ComplaintLog::Instant now) {
  const std::lock_guard lock{mutex_};
  std::string host = peer.substr(0, peer.rfind(':'));
  if (hosts_.size() >= kMaxHosts && !hosts_.contains(host)) {
    std::erase_if(hosts_, [now](const auto& known) { return known.second->is_rested(now); });
    if (hosts_.size() >= kMaxHosts) host.clear();
  }
  auto& log = hosts_[host];
  if (log == nullptr) log = std::make_shared<ComplaintLog>(log_, kAllowance);
  return log;
}

}  // namespace rtrs
