// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/predecessor.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace rnbd {
namespace {

/// Descriptors of a message; the kernel takes 253.
constexpr std::size_t kMostSockets = 200;
constexpr std::size_t kMostText = 1000;
/// For a message to a process that does not read.
constexpr timeval kSendPatience{.tv_sec = 2, .tv_usec = 0};
/// For the predecessor to leave, which limits itself, also if this program must end; and between
/// two looks at that.
constexpr std::chrono::milliseconds kTimeToLeave{5000}, kHurry{500}, kLookAgain{20};

}  // namespace

HeirLink::HeirLink(int socket) : socket_{socket} {
  ::setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &kSendPatience, sizeof(kSendPatience));
}

bool HeirLink::send(HeirMessage what, const std::string& text, std::span<const int> sockets) {
  std::string bytes = static_cast<char>(what) + text.substr(0, kMostText);
  iovec piece{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostSockets * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (!sockets.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(sockets.size_bytes());
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sockets.size_bytes());
    std::memcpy(CMSG_DATA(header), sockets.data(), sockets.size_bytes());
  }
  return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
}

std::optional<std::string> HeirLink::receive(std::vector<int>& sockets) {
  std::array<char, kMostText + 1> bytes{};
  iovec piece{bytes.data(), bytes.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostSockets * sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  ssize_t n = 0;
  while ((n = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
  }
  if (n <= 0) return std::nullopt;
  for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
       each = CMSG_NXTHDR(&message, each)) {
    if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const std::size_t before = sockets.size();
    sockets.resize(before + count);
    std::memcpy(sockets.data() + before, CMSG_DATA(each), count * sizeof(int));
  }
  return std::string{bytes.data(), static_cast<std::size_t>(n)};
}

bool HeirLink::send_estate(Estate& estate) {
  const rtrs::OwnedFd record = file_of(record_of(estate));
  const int file = record.get();
  if (!record || !send(HeirMessage::offer, "", std::span{&file, 1})) return false;
  std::vector<int> sockets;
  for (const int* each : descriptors_of(estate)) sockets.push_back(*each);
  for (std::size_t i = 0; i < sockets.size(); i += kMostSockets) {
    const auto some = std::span{sockets}.subspan(i, std::min(kMostSockets, sockets.size() - i));
    if (!send(HeirMessage::more, "", some)) return false;
  }
  return true;
}

tl::expected<Estate, std::string> HeirLink::receive_estate(std::vector<int> with_offer) {
  const rtrs::OwnedFd record{with_offer.size() == 1 ? with_offer.front() : -1};
  auto estate = record ? estate_in(bytes_of(record.get()))
                       : tl::unexpected(std::string{"it has not arrived"});
  if (!estate) return estate;
  const auto places = descriptors_of(*estate);
  std::vector<int> sockets;
  while (sockets.size() < places.size()) {
    const std::size_t before = sockets.size();
    const auto message = receive(sockets);
    if (!message || message->front() != static_cast<char>(HeirMessage::more) ||
        sockets.size() == before)
      return tl::unexpected(std::string{"its sockets have not arrived"});
  }
  for (std::size_t i = 0; i < places.size(); ++i) *places[i] = sockets[i];
  return estate;
}

// ---- The heir -----------------------------------------------------------------------------------

std::optional<Predecessor> Predecessor::of_environment() {
  const char* const number = std::getenv(kHeirVariable);
  if (number == nullptr) return std::nullopt;
  const int socket = std::atoi(number);
  ::unsetenv(kHeirVariable);
  ::fcntl(socket, F_SETFD, FD_CLOEXEC);
  return Predecessor{socket};
}

tl::expected<Estate, std::string> Predecessor::await_estate() {
  const auto gone = [] { return tl::unexpected(std::string{"the running program goes on"}); };
  if (!link_.send(HeirMessage::ready, std::to_string(estate_version()) + " " + RNBDKIT_VERSION))
    return gone();
  std::vector<int> with_offer;
  const auto message = link_.receive(with_offer);
  if (!message || message->front() != static_cast<char>(HeirMessage::offer)) return gone();
  auto estate = link_.receive_estate(std::move(with_offer));
  if (!estate) return tl::unexpected("the record is of no use: " + estate.error());
  return estate;
}

bool Predecessor::take_over() {
  std::vector<int> none;
  if (!link_.send(HeirMessage::serves)) return false;
  const auto message = link_.receive(none);
  return message && message->front() == static_cast<char>(HeirMessage::go);
}

bool Predecessor::await_end(bool (*hurry)()) {
  const auto begin = std::chrono::steady_clock::now();
  pollfd end{link_.descriptor(), POLLIN, 0};
  int n = 0;
  while (n <= 0 && std::chrono::steady_clock::now() - begin < (hurry() ? kHurry : kTimeToLeave))
    n = ::poll(&end, 1, static_cast<int>(kLookAgain.count()));
  link_.close();
  return n > 0;
}

}  // namespace rnbd
