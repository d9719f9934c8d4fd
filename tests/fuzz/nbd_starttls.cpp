// SPDX-License-Identifier: BSD-3-Clause
// Input: what an NBD client without a key sends to a front that requires TLS.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>

#include "bridge/client/connections.hpp"
#include "bridge/nbd/exports.hpp"
#include "bridge/nbd/handshake.hpp"
#include "bridge/nbd/wire.hpp"
#include "tests/fuzz/key_file.hpp"

using namespace rnbd;
using namespace rnbd::nbd;

namespace {

std::shared_ptr<rtrs::tls::KeyStore> make_keys() {
  auto keys = rtrs::tls::KeyStore::open(fuzz::key_of_host1(), {});
  fuzz::require(keys.has_value(), "the keys are good");
  return *keys;
}

ClientConfig nowhere() {
  ClientConfig config;
  config.paths.push_back({.source = {}, .host = "127.0.0.1", .port = 1});
  config.device = "disk0";
  return config;
}

std::string read_all(int socket) {
  std::string all;
  std::array<char, 4096> buffer;
  for (ssize_t n = 0; (n = ::read(socket, buffer.data(), buffer.size())) > 0;) {
    all.append(buffer.data(), static_cast<std::size_t>(n));
  }
  return all;
}

/// Up to the acknowledgement of STARTTLS, behind which there is TLS.
void judge(std::string_view answer) {
  fuzz::require(answer.size() >= sizeof(Greeting), "the front greets first");
  answer.remove_prefix(sizeof(Greeting));
  while (!answer.empty()) {
    OptionReply header;
    fuzz::require(answer.size() >= sizeof(header), "an answer is whole");
    std::memcpy(&header, answer.data(), sizeof(header));
    const std::uint32_t type = header.type, option = header.option;
    const bool secured = option == static_cast<std::uint32_t>(Option::starttls);
    const bool leaves = option == static_cast<std::uint32_t>(Option::abort);
    const bool error = (type & 0x80000000U) != 0;
    fuzz::require(error || (type == static_cast<std::uint32_t>(Reply::ack) && (secured || leaves)),
                  "in clear nothing is granted but TLS, and the end");
    if (secured && !error) return;
    answer.remove_prefix(std::min(sizeof(header) + header.length, answer.size()));
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const FrontTls tls{.mode = rtrs::TlsMode::require, .keys = make_keys()};
  static const ClientConfig config = nowhere();
  static Connections connections{config, {}};
  static Exports exports{config, connections};
  std::array<int, 2> sockets{};
  fuzz::require(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) == 0, "two sockets were made");
  constexpr std::size_t kFits = 64 << 10;  ///< bytes, without a reader
  const std::size_t all = std::min(size, kFits);
  fuzz::require(::send(sockets[1], data, all, MSG_NOSIGNAL) == static_cast<ssize_t>(all),
                "a small write never blocks");
  ::shutdown(sockets[1], SHUT_WR);
  const auto agreement =
      shake_hands(sockets[0], exports, {}, rtrs::Interrupt{}, std::chrono::seconds{10}, tls,
                  [] { fuzz::require(false, "nobody gets an export without the key"); });
  fuzz::require(!agreement, "nobody comes in without the key");
  close(sockets[0]);
  judge(read_all(sockets[1]));
  close(sockets[1]);
  return 0;
}
