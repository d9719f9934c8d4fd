// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/refusal_log.hpp"

#include <chrono>

namespace rtrs {
namespace {

constexpr Duration kPause = std::chrono::minutes{1};
/// Hosts and reasons that are kept apart. Further ones are counted as one.
constexpr std::size_t kMaxEntries = 256;

}  // namespace

void RefusalLog::say(LogLevel level, const std::string& peer, const std::string& why, Instant now) {
  if (!log_) return;
  std::pair key{peer.substr(0, peer.rfind(':')), why};
  if (entries_.size() >= kMaxEntries && !entries_.contains(key)) {
    std::erase_if(entries_, [&](const auto& entry) { return now >= entry.second.said + kPause; });
    if (entries_.size() >= kMaxEntries) key = {};
  }
  const auto [at, is_new] = entries_.try_emplace(std::move(key));
  Entry& entry = at->second;
  if (!is_new && now < entry.said + kPause) {
    ++entry.unsaid;
    log_(LogLevel::debug, peer + ": " + why);
    return;
  }
  const std::string more =
      entry.unsaid == 0 ? ""
                        : " (" + std::to_string(entry.unsaid) + " more like this were not logged)";
  entry = {now, 0};
  log_(level, peer + ": " + why + more);
}

}  // namespace rtrs
