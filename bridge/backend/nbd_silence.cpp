// SPDX-License-Identifier: BSD-3-Clause
// Silent NBD servers: tells dead ones from slow ones.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "bridge/backend/nbd_connection.hpp"

namespace rnbd {

namespace {

std::string in_seconds(std::chrono::nanoseconds time) {
  return std::to_string(std::chrono::round<std::chrono::seconds>(time).count()) + " seconds";
}

}  // namespace

/// Finds out that the machine of a server is gone while the server owes replies. If only the server
/// hangs, its machine still acknowledges the probes. Units: seconds.
void NbdConnection::keep_alive(int descriptor) {
  const int on = 1, idle = 30, interval = 10, count = 9;
  // Sockets of other kinds know of none of these, and do not need them.
  setsockopt(descriptor, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(descriptor, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

/// Checks regularly whether a server that owes replies still sends any.
void NbdConnection::watch() {
  if (watching_) return;
  watching_ = true;
  replies_then_ = replies_;
  stall_timer_.expires_after(shared_->patience);
  stall_timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
    const auto self = weak.lock();
    if (self == nullptr || error || self->state_ != State::ready) return;
    self->watching_ = false;
    self->look();
  });
}

void NbdConnection::look() {
  const bool answers = replies_ != replies_then_ || in_flight_.empty();
  if (answers && silence_told_ > std::chrono::nanoseconds{0}) {
    log("the NBD server answers again", rtrs::LogLevel::info);
  }
  if (answers) silent_ = silence_told_ = {};
  if (in_flight_.empty()) return;
  if (!answers) {
    silent_ += shared_->patience;
    if (changes_ == 0) return lose("no reply for " + in_seconds(silent_));
    stand_still();
  }
  watch();
}

/// The server could still perform a cancelled write over a later one. So the queue waits for it,
/// and reports the wait again when it has doubled.
void NbdConnection::stand_still() {
  if (silent_ < 2 * silence_told_) return;
  silence_told_ = silent_;
  log("the NBD server has answered nothing for " + in_seconds(silent_) +
          " and has changes under way (" + std::to_string(changes_) +
          "): all requests wait for it, because it may still carry them out; see to that server",
      rtrs::LogLevel::warning);
}

}  // namespace rnbd
