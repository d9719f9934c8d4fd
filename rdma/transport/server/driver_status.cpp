// SPDX-License-Identifier: BSD-3-Clause
// Reports the status of a running server, and changes its settings.
#include <boost/asio/post.hpp>
#include <optional>
#include <utility>

#include "rdma/transport/server/driver.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;
/// An event loop that is busy for longer hangs.
constexpr auto kPatience = std::chrono::seconds{2};

/// The event loops' answers, by session; outlives a caller that has lost patience.
struct Answers {
  std::mutex mutex;
  std::condition_variable complete;
  std::vector<std::optional<ServerSessionStatus>> sessions;
  std::size_t missing = 0;
};

}  // namespace

std::vector<std::string> ServerDriver::addresses() const {
  const std::lock_guard lock{mutex_};
  std::vector<std::string> all;
  for (const Entrance& entrance : entrances_) all.push_back(entrance.acceptor->address());
  return all;
}

bool ServerDriver::set_access(unsigned listener, wire::PathAccess access) {
  const std::lock_guard lock{mutex_};
  if (listener >= entrances_.size()) return false;
  Entrance& entrance = entrances_[listener];
  if (std::exchange(entrance.access, access) == access) return true;
  admission_.set_access(listener, access);
  log(LogLevel::info, entrance.acceptor->address() + " is " + to_string(access) + " from now on");
  for (auto& [id, host] : sessions_) {
    asio::post(host->reactor().io(),
               [host = host, listener, access] { host->set_access(listener, access); });
  }
  return true;
}

std::vector<ServerSessionStatus> ServerDriver::sessions() {
  const auto answers = std::make_shared<Answers>();
  {
    const std::lock_guard lock{mutex_};
    answers->sessions.resize(sessions_.size());
    answers->missing = sessions_.size();
    std::size_t place = 0;
    for (auto& [id, host] : sessions_) {
      asio::post(host->reactor().io(), [answers, host = host, place] {
        auto status = host->status();
        const std::lock_guard answer_lock{answers->mutex};
        answers->sessions[place] = std::move(status);
        if (--answers->missing == 0) answers->complete.notify_one();
      });
      ++place;
    }
  }
  std::unique_lock lock{answers->mutex};
  answers->complete.wait_for(lock, kPatience, [&] { return answers->missing == 0; });
  std::vector<ServerSessionStatus> all;
  for (auto& status : answers->sessions) {
    if (status) all.push_back(std::move(*status));
  }
  return all;
}

void ServerDriver::end_session(const wire::Uuid& uuid, const std::string& user,
                               const std::string& why) {
  const std::lock_guard lock{mutex_};
  for (auto& [id, host] : sessions_) {
    asio::post(host->reactor().io(), [host = host, uuid, user, why] {
      if (host->is(uuid, user)) host->close(why);
    });
  }
}

void ServerDriver::end_path(const std::string& peer, const std::string& why) {
  const std::lock_guard lock{mutex_};
  for (auto& [id, host] : sessions_) {
    asio::post(host->reactor().io(), [host = host, peer, why] { host->close_path(peer, why); });
  }
}

std::uint64_t ServerDriver::memory() const { return account_.floors() + account_.lent(); }

Repeats ServerDriver::past_repeats() const {
  const std::lock_guard lock{mutex_};
  return past_repeats_;
}

}  // namespace rtrs
