#include "rdma/transport/resolve.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace rtrs {
namespace {

namespace asio = boost::asio;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
/// How often to look whether a name has been found.
constexpr auto kFirstLook = std::chrono::milliseconds{1};
constexpr auto kLongestLook = std::chrono::milliseconds{50};

/// A name being looked up in a thread of its own. getaddrinfo(3) cannot be interrupted and may take
/// minutes, and Asio's resolver waits for it when it is destroyed: who gives up here just leaves.
struct Lookup {
  std::string host;
  std::vector<asio::ip::address> addresses;
  int error = 0;  ///< of getaddrinfo
  std::atomic<bool> done{false};

  void run() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_ADDRCONFIG;
    addrinfo* found = nullptr;
    error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      asio::ip::tcp::endpoint endpoint;
      if (at->ai_addrlen > endpoint.capacity()) continue;
      std::memcpy(endpoint.data(), at->ai_addr, at->ai_addrlen);
      addresses.push_back(endpoint.address());
    }
    if (found != nullptr) freeaddrinfo(found);
    done.store(true, std::memory_order_release);
  }
};

}  // namespace

asio::awaitable<tl::expected<std::vector<asio::ip::address>, Failure>> resolve(std::string host) {
  boost::system::error_code error;
  const auto literal = asio::ip::make_address(host, error);
  if (!error) co_return std::vector{literal};

  const auto lookup = std::make_shared<Lookup>();
  lookup->host = host;
  std::thread{[lookup] { lookup->run(); }}.detach();
  asio::steady_timer pause{co_await asio::this_coro::executor};
  // Asked again and again, so that the thread need not know whether anybody still waits.
  for (auto time = kFirstLook; !lookup->done.load(std::memory_order_acquire);
       time = std::min(2 * time, kLongestLook)) {
    pause.expires_after(time);
    co_await pause.async_wait(kAwait);
  }
  if (lookup->error != 0) {
    co_return tl::unexpected(Failure{EHOSTUNREACH, "cannot resolve host '" + host +
                                                       "': " + gai_strerror(lookup->error) +
                                                       " (check the spelling, or use a numeric "
                                                       "address)"});
  }
  co_return lookup->addresses;
}

}  // namespace rtrs
