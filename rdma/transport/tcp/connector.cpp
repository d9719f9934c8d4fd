#include "rdma/transport/tcp/connector.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "rdma/transport/tcp/frame.hpp"
#include "rdma/transport/tcp/queue_pair.hpp"

namespace rtrs::tcp {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
/// How often to look whether a name has been found.
constexpr auto kFirstLook = std::chrono::milliseconds{1};
constexpr auto kLongestLook = std::chrono::milliseconds{50};

std::string name_of(const PathAddress& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return (is_ipv6 ? '[' + address.host + ']' : address.host) + ':' + std::to_string(address.port);
}

Failure failure(const PathAddress& address, const boost::system::error_code& error,
                const std::string& what) {
  std::string text = what + ' ' + name_of(address) + ": " + error.message();
  if (error == asio::error::connection_refused) {
    text += " (is rnbd-server running there, and listening on this address and port?)";
  }
  const bool is_errno = error.category() == boost::system::system_category();
  return {is_errno ? error.value() : EPROTO, std::move(text)};
}

Failure no_rtrs(const PathAddress& address, std::string_view why) {
  return {EPROTO, name_of(address) + " does not speak RTRS over TCP: " + std::string{why}};
}

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
      tcp::endpoint endpoint;
      if (at->ai_addrlen > endpoint.capacity()) continue;
      std::memcpy(endpoint.data(), at->ai_addr, at->ai_addrlen);
      addresses.push_back(endpoint.address());
    }
    if (found != nullptr) freeaddrinfo(found);
    done.store(true, std::memory_order_release);
  }
};

asio::awaitable<tl::expected<std::vector<tcp::endpoint>, Failure>> resolve(
    const PathAddress& address) {
  boost::system::error_code error;
  const auto literal = asio::ip::make_address(address.host, error);
  if (!error) co_return std::vector{tcp::endpoint{literal, address.port}};

  const auto lookup = std::make_shared<Lookup>();
  lookup->host = address.host;
  std::thread{[lookup] { lookup->run(); }}.detach();
  asio::steady_timer pause{co_await asio::this_coro::executor};
  // Asked again and again, so that the thread need not know whether anybody still waits.
  for (auto time = kFirstLook; !lookup->done.load(std::memory_order_acquire);
       time = std::min(2 * time, kLongestLook)) {
    pause.expires_after(time);
    co_await pause.async_wait(kAwait);
  }
  if (lookup->error != 0) {
    co_return tl::unexpected(Failure{EHOSTUNREACH, "cannot resolve host '" + address.host +
                                                       "': " + gai_strerror(lookup->error) +
                                                       " (check the spelling, or use a numeric "
                                                       "address)"});
  }
  std::vector<tcp::endpoint> endpoints;
  for (const auto& found : lookup->addresses) endpoints.emplace_back(found, address.port);
  co_return endpoints;
}

asio::awaitable<tl::expected<tcp::socket, Failure>> connect(const PathAddress& address) {
  auto endpoints = co_await resolve(address);
  if (!endpoints) co_return tl::unexpected(endpoints.error());
  boost::system::error_code error;
  const bool has_source = !address.source.empty();
  const auto source =
      has_source ? asio::ip::make_address(address.source, error) : asio::ip::address{};
  const auto bad_source = [&] {
    return tl::unexpected(
        failure(address, error, "cannot use source address '" + address.source + "' towards"));
  };
  if (error) co_return bad_source();
  error = asio::error::address_family_not_supported;  // of the source, unless one fits
  for (const tcp::endpoint& endpoint : *endpoints) {
    if (has_source && source.is_v6() != endpoint.address().is_v6()) continue;
    tcp::socket socket{co_await asio::this_coro::executor};
    if (const int descriptor = open_socket(endpoint.protocol().family()); descriptor < 0) {
      error = {errno, boost::system::system_category()};
      continue;
    } else if (socket.assign(endpoint.protocol(), descriptor, error)) {
      ::close(descriptor);
      continue;
    }
    if (has_source && socket.bind({source, 0}, error)) co_return bad_source();
    auto [failed] = co_await socket.async_connect(endpoint, kAwait);
    if (!failed) co_return std::move(socket);
    error = failed;
  }
  co_return tl::unexpected(failure(address, error, "cannot connect to"));
}

Failure explain_magic(const PathAddress& address, const Hello& hello) {
  const std::string_view magic{hello.magic.data(), hello.magic.size()};
  if (magic == "NBDMAGIC") {
    return no_rtrs(address, "it is an NBD server (use 'nbdkit nbd' or an nbd:// URI for it)");
  }
  return no_rtrs(address, "unexpected greeting (check host and port)");
}

}  // namespace

int open_socket(int family) {
  return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
}

void tune_socket(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

asio::awaitable<tl::expected<Opened, Failure>> open_connection(PathAddress address,
                                                               wire::ConnectRequest request,
                                                               std::uint16_t digests) {
  auto socket = co_await connect(address);
  if (!socket) co_return tl::unexpected(socket.error());
  tune_socket(socket->native_handle());

  const Hello ours = make_hello(wire::bytes_of(request), digests);
  Hello theirs;
  auto [not_sent, sent] =
      co_await asio::async_write(*socket, asio::buffer(&ours, sizeof(ours)), kAwait);
  if (not_sent) co_return tl::unexpected(failure(address, not_sent, "handshake failed with"));
  // The magic first: a peer of another kind may never send as much as a whole hello.
  auto [no_magic, n] =
      co_await asio::async_read(*socket, asio::buffer(&theirs, sizeof(theirs.magic)), kAwait);
  if (!no_magic && theirs.magic != kHelloMagic) {
    co_return tl::unexpected(explain_magic(address, theirs));
  }
  boost::system::error_code broken = no_magic;
  if (!broken) {
    auto [failed, m] = co_await asio::async_read(
        *socket,
        asio::buffer(reinterpret_cast<char*>(&theirs) + sizeof(theirs.magic),
                     sizeof(theirs) - sizeof(theirs.magic)),
        kAwait);
    broken = failed;
  }
  if (broken == asio::error::eof || broken == asio::error::connection_reset) {
    co_return tl::unexpected(Failure{
        ECONNRESET, name_of(address) +
                        " closed the connection during the handshake (it is busy, or does not "
                        "speak RTRS over TCP)"});
  }
  if (broken) co_return tl::unexpected(failure(address, broken, "handshake failed with"));

  const auto hello = decode_hello(wire::bytes_of(theirs));
  if (!hello) co_return tl::unexpected(no_rtrs(address, to_string(hello.error())));
  const std::uint16_t chosen = hello->digests;
  if ((chosen & ~digests) != 0) {
    co_return tl::unexpected(no_rtrs(address, "it chose digests that were not offered"));
  }
  Opened opened;
  opened.record = hello->record;
  opened.connection = std::make_unique<TcpQueuePair>(
      socket->release(),
      Digests{.header = (chosen & kDigestHeader) != 0, .data = (chosen & kDigestData) != 0});
  co_return opened;
}

}  // namespace rtrs::tcp
