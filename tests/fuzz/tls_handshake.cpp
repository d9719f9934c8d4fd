// SPDX-License-Identifier: BSD-3-Clause
// Input: one byte (the size of the pieces that arrive), what a stranger sends to a listener with
// TLS.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <memory>

#include "rdma/transport/tls/session.hpp"
#include "tests/fuzz/key_file.hpp"

using namespace rtrs::tls;

namespace {

std::shared_ptr<const Credentials> make_credentials() {
  auto loaded = Credentials::load(fuzz::key_of_host1(), Role::server);
  fuzz::require(loaded.has_value(), "the keys are good");
  return *loaded;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto credentials = make_credentials();
  fuzz::Input input{data, size};
  const std::size_t piece = std::size_t{1} + input.take<std::uint8_t>();
  std::array<int, 2> sockets{};
  fuzz::require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, sockets.data()) == 0,
                "a pair of sockets was made");
  {
    auto session =
        Session::create({.credentials = credentials, .server_name = "", .protocol = "rtrs/1"});
    fuzz::require(session.has_value(), "a session was made");
    auto step = Session::Step::receive;
    auto rest = input.rest();
    while (!rest.empty() && step == Session::Step::receive) {
      const auto now = rest.first(std::min(piece, rest.size()));
      fuzz::require(write(sockets[1], now.data(), now.size()) == static_cast<ssize_t>(now.size()),
                    "a small write never blocks");
      rest = rest.subspan(now.size());
      (*session)->fetch(sockets[0]);
      step = (*session)->shake_hands();
      (*session)->flush(sockets[0]);
    }
    fuzz::require(step != Session::Step::done, "nobody comes in without the key");
    fuzz::require((step == Session::Step::failed) == !(*session)->failure().text.empty(),
                  "whoever is refused is refused with a sentence");
  }
  close(sockets[0]);
  close(sockets[1]);
  return 0;
}
