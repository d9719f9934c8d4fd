// SPDX-License-Identifier: BSD-3-Clause
// The addresses that a server advertises become paths of the session, where the user wants that.
#include <netdb.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <set>
#include <utility>

#include "bridge/client/shared_session.hpp"
#include "rdma/host_name.hpp"

namespace rnbd {
namespace {

using rtrs::PathAddress;

/// Ends a question when its asker leaves, or when it has taken too long.
struct InTime {
  const Interrupt& asker;
  const std::chrono::steady_clock::time_point deadline;
  static bool ended(void* context) {
    const auto& self = *static_cast<const InTime*>(context);
    return self.asker() || std::chrono::steady_clock::now() >= self.deadline;
  }
  Interrupt interrupt() { return {&ended, this}; }
};

/// `flags` are those of getaddrinfo(3).
std::set<std::string> addresses_of(const std::string& host, int flags) {
  std::set<std::string> all;
  const auto found = rtrs::resolve_host(host, flags);
  for (const addrinfo* each = found ? found->get() : nullptr; each != nullptr;
       each = each->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    const int error = ::getnameinfo(each->ai_addr, each->ai_addrlen, text.data(), text.size(),
                                    nullptr, 0, NI_NUMERICHOST);
    if (error == 0) all.insert(text.data());
  }
  return all;
}

/// Whether a path leads to an address already, under another name perhaps. Only a name by which it
/// has just connected is looked up, since that may take long.
bool leads_to(const rtrs::PathStatus& path, const PathAddress& address) {
  if (path.address.transport != address.transport || path.address.port != address.port)
    return false;
  if (path.address.host == address.host) return true;
  const std::set<std::string> wanted = addresses_of(address.host, AI_NUMERICHOST);
  if (wanted.empty()) return false;
  const bool known = path.state == rtrs::PathState::connected;
  const auto known_as = addresses_of(path.address.host, known ? 0 : AI_NUMERICHOST);
  return std::ranges::any_of(wanted, [&](const auto& each) { return known_as.contains(each); });
}

}  // namespace

void SharedSession::say(rtrs::LogLevel level, const std::string& line) const {
  if (log_) log_(level, line);
}

/// Once for all sessions: what a user takes away later stays away.
void SharedSession::learn_paths(Session& session, const Interrupt& interrupt) {
  {
    const std::lock_guard lock{mutex_};
    if (std::exchange(learned_, true)) return;
  }
  InTime patience{interrupt, std::chrono::steady_clock::now() + config_.connect_timeout};
  const auto advertised = session.directory().advertised(patience.interrupt());
  if (!advertised) {
    say(rtrs::LogLevel::warning, "paths=auto: the server does not tell its addresses: " +
                                     advertised.error().text + "; the next session asks again");
    const std::lock_guard lock{mutex_};
    learned_ = false;
    return;
  }
  if (advertised->empty()) {
    say(rtrs::LogLevel::info, "paths=auto: the server advertises no addresses");
  }
  for (const PathAddress& path : *advertised) add_advertised(session, path);
}

/// That it leads to the same server is proven as for every path, before anything is sent there.
void SharedSession::add_advertised(Session& session, const PathAddress& path) {
  const auto paths = session.client().paths();
  if (std::ranges::any_of(paths, [&](const auto& each) { return leads_to(each, path); })) return;
  const auto added = add_path(path);
  if (added) {
    say(rtrs::LogLevel::info,
        "the server advertises " + to_string(path) + ", which becomes a further path");
  } else if (added.error().error != EEXIST) {
    say(rtrs::LogLevel::warning,
        "the server advertises " + to_string(path) + ", which is left out: " + added.error().text);
  }
}

}  // namespace rnbd
