// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/front.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <system_error>
#include <utility>

#include "rdma/descriptor_reserve.hpp"

namespace rnbd::nbd {
namespace {

/// The send buffer of Unix sockets: for the replies of a whole batch, but little enough that a
/// client finds them in the CPU's cache. The kernel doubles it, as far as its limits allow. That of
/// a TCP socket grows by itself with the network, unless it is set.
constexpr int kSendBuffer = 256 * 1024;
/// Clients that were turned away, until their threads have ended.
constexpr unsigned kMostLeaving = 64;
/// For clients in their handshake, before a successor takes over those who are served.
constexpr std::chrono::milliseconds kTimeToMeet{100};
/// For the system to have descriptors again.
constexpr std::chrono::milliseconds kAcceptPause{100};

bool is_unix(int socket) {
  int domain = 0;
  socklen_t size = sizeof(domain);
  return ::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

void prepare(int socket) {
  const int one = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
  if (is_unix(socket)) {
    ::setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
  } else {
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  }
}

bool has_gone(int socket) {
  pollfd descriptor{socket, POLLRDHUP, 0};
  return ::poll(&descriptor, 1, 0) > 0;
}

/// An inherited socket may be shared, and another process may accept the client that poll(2) has
/// reported.
void never_block(int socket) { ::fcntl(socket, F_SETFL, ::fcntl(socket, F_GETFL) | O_NONBLOCK); }

}  // namespace

Front::Front(Exports& exports, std::vector<Listener> listeners, FrontOptions options)
    : exports_{exports},
      listeners_{std::move(listeners)},
      options_{std::move(options)},
      accept_complaints_{options_.log},
      handshake_complaints_{options_.log},
      request_complaints_{options_.log} {}

Front::~Front() { stop({}); }

void Front::start() {
  for (unsigned i = 0; i < options_.workers; ++i) {
    workers_.push_back(
        std::make_unique<Worker>(i, pool_, into(request_complaints_), options_.make_call));
  }
  acceptor_ = std::thread{[this] { accept_clients(); }};
}

void Front::open_door() {
  {
    const std::lock_guard lock{mutex_};
    accepts_ = true;
  }
  changed_.notify_all();
}

void Front::add(std::vector<Listener> listeners) {
  {
    const std::lock_guard lock{mutex_};
    std::ranges::move(listeners, std::back_inserter(added_));
  }
  wake_.wake();
}

void Front::stop(std::chrono::milliseconds patience) {
  if (workers_.empty()) return;
  close_door();
  {
    const std::lock_guard lock{mutex_};
    stopping_ = true;
  }
  changed_.notify_all();
  if (acceptor_.joinable()) acceptor_.join();  // else it could not be started
  for (const auto& worker : workers_) worker->stop(patience);
  {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [this] { return meetings_.empty(); });
  }
  workers_.clear();
}

void Front::stop_accepting() {
  std::unique_lock lock{mutex_};
  accepts_ = false;
  wake_.wake();
  changed_.wait(lock, [this] { return !accepting_; });
}

/// Nobody comes in any more.
void Front::close_door() {
  {
    const std::lock_guard lock{mutex_};
    closed_ = true;
  }
  stop_accepting();
}

Front::Usage Front::usage() const {
  Usage usage{.memory = pool_.memory.used()};
  for (const auto& worker : workers_) usage.clients += worker->connections();
  return usage;
}

// ---- Clients ------------------------------------------------------------------------------------

void Front::accept_clients() {
  std::vector<pollfd> descriptors{{wake_.descriptor(), POLLIN, 0}};
  while (take_up_listeners()) {
    for (std::size_t i = descriptors.size() - 1; i < listeners_.size(); ++i) {
      never_block(listeners_[i].fd());
      descriptors.push_back({listeners_[i].fd(), POLLIN, 0});
    }
    ::poll(descriptors.data(), descriptors.size(), -1);
    for (std::size_t i = 1; i < descriptors.size(); ++i) {
      if (descriptors[i].revents == 0) continue;
      const int socket = ::accept4(descriptors[i].fd, nullptr, nullptr, SOCK_CLOEXEC);
      if (socket >= 0 && rtrs::is_reserved(socket)) {
        ::close(socket);
        complain(
            "a client was turned away: the last descriptors are kept for those who are there "
            "(raise LimitNOFILE)");
      } else if (socket >= 0) {
        admit(socket);
      } else if (errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
        complain("cannot accept a client: " + std::string{describe_error(errno)});
        std::this_thread::sleep_for(kAcceptPause);
      }
    }
  }
}

/// Takes up new listeners when the door is open. False: that will not be again.
bool Front::take_up_listeners() {
  wake_.clear();
  std::unique_lock lock{mutex_};
  if (!accepts_) {
    accepting_ = false;
    changed_.notify_all();
    changed_.wait(lock, [this] { return accepts_ || stopping_; });
  }
  accepting_ = accepts_;
  std::ranges::move(added_, std::back_inserter(listeners_));
  added_.clear();
  return accepting_;
}

void Front::admit(int socket) {
  std::unique_lock lock{mutex_};  // a client that is handed over meanwhile counts once
  if (!make_room()) {
    lock.unlock();
    ::close(socket);
    return complain("a client was turned away: there are " +
                    std::to_string(options_.max_connections) + " already (--max-connections)");
  }
  const auto place = meetings_.insert(meetings_.end(), {.socket = socket});
  lock.unlock();
  prepare(socket);
  try {
    std::thread{[this, place] { meet(place); }}.detach();
  } catch (const std::system_error& error) {
    complain(std::string{"a client was turned away: "} + error.what());
    forget(place);
  }
}

/// False: all present clients have finished their handshake, or many rejected ones are not gone
/// yet.
bool Front::make_room() {
  std::size_t clients = meetings_.size() - turned_away_;
  for (const auto& worker : workers_) clients += worker->connections();
  if (clients < options_.max_connections) return true;
  const auto oldest = std::ranges::find_if(
      meetings_, [](const Meeting& one) { return !one.turned_away && !one.chosen; });
  if (oldest == meetings_.end() || turned_away_ >= kMostLeaving) return false;
  oldest->turned_away = true;
  ++turned_away_;
  ::shutdown(oldest->socket, SHUT_RDWR);  // its thread sees the end
  return true;
}

/// Runs on a thread of its own, which may wait, but not longer than the client does: another client
/// may want its place.
void Front::meet(Meetings::iterator place) {
  struct Patience {
    const Front& front;
    int socket;
    static bool ended(void* context) {
      const auto& self = *static_cast<const Patience*>(context);
      return self.front.closed_.load() || has_gone(self.socket);
    }
  } patience{*this, place->socket};
  const Interrupt interrupt{&Patience::ended, &patience};
  const auto chosen = [this, place] {
    const std::lock_guard lock{mutex_};
    place->chosen = true;
  };
  auto agreement = shake_hands(place->socket, exports_, into(handshake_complaints_), interrupt,
                               kHandshakePatience, options_.tls, chosen);
  if (agreement && hand_over(place, *agreement)) return;
  agreement.reset();  // closes its device
  forget(place);
}

/// Ends the handshake. False: nobody comes in any more.
bool Front::hand_over(Meetings::iterator place, Agreement& agreement) {
  const std::lock_guard lock{mutex_};
  if (closed_ || place->turned_away) return false;
  worker_for(agreement).adopt(place->socket, std::move(agreement));
  meetings_.erase(place);
  changed_.notify_all();
  return true;
}

/// The one that has least to do.
Worker& Front::worker_for(const Agreement& agreement) {
  const std::size_t lanes = std::max(agreement.device->lane_source()->lanes(), 1U);
  const auto end = workers_.begin() + static_cast<std::ptrdiff_t>(std::min(lanes, workers_.size()));
  return **std::min_element(workers_.begin(), end, [](const auto& a, const auto& b) {
    return a->connections() < b->connections();
  });
}

bool Front::adopt(int socket, Agreement agreement) {
  const std::lock_guard lock{mutex_};
  if (stopping_ || closed_) return false;
  prepare(socket);
  worker_for(agreement).adopt(socket, std::move(agreement));
  return true;
}

bool Front::grow(const Watched* client, std::uint64_t size) {
  return std::ranges::all_of(workers_,
                             [=](const auto& worker) { return worker->grow(client, size); });
}

Front::Releasing Front::release(const Watched* client) {
  Releasing releasing;
  for (const auto& worker : workers_) releasing.answers_.push_back(worker->release(client));
  return releasing;
}

std::optional<Released> Front::Releasing::await(std::chrono::steady_clock::time_point until) {
  std::optional<Released> released;
  for (auto& answer : answers_) {
    if (answer.wait_until(until) != std::future_status::ready) return std::nullopt;
    if (auto one = answer.get()) released = std::move(one);
  }
  return released;
}

Front::ReleasingAll Front::release_all() {
  close_door();
  ReleasingAll releasing;
  for (const auto& worker : workers_) releasing.begun_.push_back(worker->release_all());
  return releasing;
}

std::vector<Released> Front::ReleasingAll::await(std::chrono::steady_clock::time_point until) {
  std::vector<Released> released;
  for (auto& each : begun_) {
    for (auto& answer : each.get()) {
      if (answer.wait_until(until) != std::future_status::ready) continue;
      auto one = answer.get();
      if (one && one->disk)
        released.push_back(*std::move(one));
      else if (one)
        ::close(one->socket);  // its disk was lost meanwhile
    }
  }
  return released;
}

bool Front::let_meet(std::chrono::steady_clock::time_point until) {
  stop_accepting();
  std::unique_lock lock{mutex_};
  return changed_.wait_until(lock, until, [this] { return meetings_.empty(); });
}

/// Clients in their handshake have a moment to end it.
Front::Pause Front::pause(std::chrono::steady_clock::time_point until, Worker::Others others) {
  let_meet(std::min(until, std::chrono::steady_clock::now() + kTimeToMeet));
  close_door();
  std::vector<std::future<Worker::Staying>> answers;
  for (const auto& worker : workers_) answers.push_back(worker->pause(others));
  Pause all{.still = true, .staying = {}, .silent = 0};
  for (auto& answer : answers) {
    if (answer.wait_until(until) != std::future_status::ready) {
      all.still = false;
      continue;
    }
    const Worker::Staying some = answer.get();
    all.staying.encrypted += some.encrypted;
    all.staying.leaving += some.leaving;
    all.staying.others += some.others;
  }
  if (all.still) return all;
  for (const auto& worker : workers_) all.silent += worker->count_silent().get();
  return all;
}

void Front::resume() {
  {
    const std::lock_guard lock{mutex_};
    closed_ = false;
  }
  for (const auto& worker : workers_) worker->resume();
}

/// Closes the socket.
void Front::forget(Meetings::iterator place) {
  const std::lock_guard lock{mutex_};
  ::close(place->socket);
  turned_away_ -= place->turned_away ? 1U : 0U;
  meetings_.erase(place);
  changed_.notify_all();
}

void Front::complain(const std::string& text) {
  accept_complaints_.say(rtrs::LogLevel::warning, text, std::chrono::steady_clock::now());
}

rtrs::Log Front::into(rtrs::ComplaintLog& complaints) {
  return [&complaints](rtrs::LogLevel level, const std::string& line) {
    complaints.say(level, line, std::chrono::steady_clock::now());
  };
}

}  // namespace rnbd::nbd
