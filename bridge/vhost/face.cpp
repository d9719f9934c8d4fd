// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/face.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "bridge/client/session.hpp"
#include "bridge/control/unix_socket.hpp"
#include "rdma/descriptor_reserve.hpp"

namespace rnbd::vhost {
namespace {

constexpr std::size_t kMostCalls = 16;  ///< threads for calls that may wait
constexpr int kLook = 100;              ///< milliseconds until the clock is looked at again
/// The pause after which the system may have descriptors again.
constexpr std::chrono::milliseconds kAcceptPause{100};

bool has_gone(int socket) {
  pollfd descriptor{socket, POLLRDHUP, 0};
  return ::poll(&descriptor, 1, 0) > 0 && (descriptor.revents & (POLLRDHUP | POLLHUP)) != 0;
}

}  // namespace

tl::expected<std::unique_ptr<Face>, std::string> Face::open(nbd::Exports& exports,
                                                            MeterBook& meters,
                                                            FaceOptions options) {
  constexpr mode_t kWhatTheUmaskLeaves = 0777;
  const auto fd = listen_on_unix_socket(options.path, kWhatTheUmaskLeaves);
  if (!fd) return tl::unexpected(fd.error());
  rtrs::OwnedFd listener{*fd};
  ::fcntl(listener.get(), F_SETFL, ::fcntl(listener.get(), F_GETFL) | O_NONBLOCK);
  return std::unique_ptr<Face>{new Face{exports, meters, std::move(options), std::move(listener)}};
}

Face::Face(nbd::Exports& exports, MeterBook& meters, FaceOptions options, rtrs::OwnedFd listener)
    : exports_{exports},
      meters_{meters},
      options_{std::move(options)},
      complaints_{options_.log},
      listener_{std::move(listener)},
      calls_{kMostCalls} {}

Face::~Face() {
  stop({});
  ::unlink(options_.path.c_str());
}

void Face::open_door() {
  thread_ = std::thread{[this] { run(); }};
}

void Face::stop(std::chrono::steady_clock::time_point until) {
  until_ = until;
  stopping_ = true;
  wake_.wake();
  if (thread_.joinable()) thread_.join();
}

void Face::say(rtrs::LogLevel level, const std::string& line) {
  complaints_.say(level, line, std::chrono::steady_clock::now());
}

// ---- Clients come and go ------------------------------------------------------------------------

void Face::run() {
  while (!stopping_) {
    std::array<pollfd, 2> polled{{{wake_.descriptor(), POLLIN, 0}, {listener_.get(), POLLIN, 0}}};
    ::poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) wake_.clear();
    if (stopping_ || polled[1].revents == 0) continue;
    if (rtrs::OwnedFd socket = accept()) serve(std::move(socket));
  }
}

rtrs::OwnedFd Face::accept() {
  rtrs::OwnedFd socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  const int error = errno;
  if (socket && rtrs::is_reserved(socket.get())) {
    say(rtrs::LogLevel::warning,
        "a virtual machine was turned away: the last descriptors are kept for those who are there "
        "(raise LimitNOFILE)");
    return {};
  }
  if (!socket && error != EAGAIN && error != ECONNABORTED && error != EINTR) {
    say(rtrs::LogLevel::warning,
        "cannot accept a virtual machine: " + std::string{describe_error(error)});
    std::this_thread::sleep_for(kAcceptPause);
  }
  return socket;
}

void Face::refuse_another() {
  const rtrs::OwnedFd socket = accept();
  if (!socket) return;
  say(rtrs::LogLevel::warning,
      "vhost:" + options_.path + ": a second virtual machine was turned away, as one is there");
}

void Face::serve(rtrs::OwnedFd socket) {
  struct Patience {
    const Face& face;
    int socket;
    static bool ended(void* context) {
      const auto& self = *static_cast<const Patience*>(context);
      return self.face.stopping_.load() || has_gone(self.socket);
    }
  } patience{*this, socket.get()};
  const Interrupt interrupt{&Patience::ended, &patience};
  auto disk = exports_.open("", interrupt);
  if (!disk) {
    if (!interrupt())
      say(rtrs::LogLevel::warning, "a virtual machine gets no disk: " + disk.error().text);
    return;
  }
  Client client{std::move(socket),
                *std::move(disk),
                {.calls = calls_,
                 .meters = meters_,
                 .log = [this](rtrs::LogLevel level, const std::string& line) { say(level, line); },
                 .make_call = options_.make_call,
                 .wake = wake_}};
  serve(client);
  if (!client.why().empty())
    say(rtrs::LogLevel::warning, "virtual machine: " + client.why() + "; disconnecting it");
  leave(client);
}

/// Returns when the client has left, or is to be left.
void Face::serve(Client& client) {
  while (!stopping_) {
    std::array<pollfd, 3> polled{{{wake_.descriptor(), POLLIN, 0},
                                  {client.socket(), client.events(), 0},
                                  {listener_.get(), POLLIN, 0}}};
    ::poll(polled.data(), polled.size(), client.patience());
    client.on_clock();
    if (polled[0].revents != 0) {
      wake_.clear();
      if (!client.on_wake()) return;
    } else if (polled[1].revents != 0) {
      if (!client.on_socket()) return;
    } else if (polled[2].revents != 0) {
      refuse_another();
    }
  }
}

/// A client that has gone gets no answers, and the session counts cancelled writes: the next user
/// of the disk waits for them.
void Face::leave(Client& client) {
  if (stopping_) {
    client.drain();
    await_idle(client, until_);
    // A ring that ended out of order is left when all of it has ended: the next start goes on
    // behind what it has seen there.
    client.abandon();
  } else {
    client.leave_rings();
    client.abandon();
  }
  await_idle(client, std::chrono::steady_clock::time_point::max());
}

void Face::await_idle(const Client& client, std::chrono::steady_clock::time_point until) {
  for (;;) {
    wake_.clear();
    if (client.is_idle() || std::chrono::steady_clock::now() >= until) return;
    pollfd polled{wake_.descriptor(), POLLIN, 0};
    ::poll(&polled, 1, kLook);
  }
}

}  // namespace rnbd::vhost
