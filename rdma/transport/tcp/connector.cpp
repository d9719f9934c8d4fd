#include "rdma/transport/tcp/connector.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "rdma/transport/resolve.hpp"
#include "rdma/transport/tcp/frame.hpp"
#include "rdma/transport/tcp/queue_pair.hpp"

namespace rtrs::tcp {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);

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

/// A socket that is closed after `patience`, so that what waits for it ends.
std::shared_ptr<tcp::socket> make_socket(const asio::any_io_executor& executor, Duration patience) {
  auto socket = std::make_shared<tcp::socket>(executor);
  auto timer = std::make_shared<asio::steady_timer>(executor, patience);
  timer->async_wait([timer, watched = std::weak_ptr{socket}](boost::system::error_code) {
    boost::system::error_code ignored;
    if (const auto late = watched.lock()) late->close(ignored);
  });
  return socket;
}

using Socket = std::shared_ptr<tcp::socket>;

asio::awaitable<tl::expected<Socket, Failure>> connect(const ConnectOptions& options) {
  const PathAddress& address = options.address;
  const Socket socket = make_socket(co_await asio::this_coro::executor, options.patience);
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
  for (const asio::ip::address& found : options.addresses) {
    const tcp::endpoint endpoint{found, address.port};
    if (has_source && source.is_v6() != endpoint.address().is_v6()) continue;
    boost::system::error_code ignored;
    socket->close(ignored);
    if (const int descriptor = open_socket(endpoint.protocol().family()); descriptor < 0) {
      error = {errno, boost::system::system_category()};
      continue;
    } else if (socket->assign(endpoint.protocol(), descriptor, error)) {
      ::close(descriptor);
      continue;
    }
    if (has_source && socket->bind({source, 0}, error)) co_return bad_source();
    auto [failed] = co_await socket->async_connect(endpoint, kAwait);
    if (!failed) co_return socket;
    error = failed;
    if (failed == asio::error::operation_aborted) break;
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

/// Of a path only connection 0 has always something to say: what watches connections on the way and
/// forgets those that are idle must not forget the others, and if it has, they are better lost
/// before somebody needs them. Source: tcp(7); seconds.
static void keep_alive(int socket) {
  const int on = 1, idle = 30, interval = 10, count = 3;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof(interval));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
}

void tune_socket(int socket) {
  const int on = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  keep_alive(socket);
}

asio::awaitable<tl::expected<Opened, Failure>> open_connection(ConnectOptions options,
                                                               wire::ConnectRequest request) {
  const PathAddress& address = options.address;
  const auto digests = static_cast<std::uint16_t>((options.header_digest ? kDigestHeader : 0) |
                                                  (options.data_digest ? kDigestData : 0));
  const auto connected = co_await connect(options);
  if (!connected) co_return tl::unexpected(connected.error());
  const Socket& socket = *connected;
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
