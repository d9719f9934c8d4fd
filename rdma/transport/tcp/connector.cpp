// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/connector.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <cerrno>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "rdma/transport/await.hpp"
#include "rdma/transport/resolve.hpp"
#include "rdma/transport/tcp/frame.hpp"
#include "rdma/transport/tcp/queue_pair.hpp"
#include "rdma/transport/tcp/secure.hpp"

namespace rtrs::tcp {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

Failure failure(const PathAddress& address, const boost::system::error_code& error,
                const std::string& what) {
  std::string text = what + ' ' + name_of(address) + ": " + error.message();
  if (error == asio::error::connection_refused) {
    text += " (is the server running there, and listening on this address and port?)";
  }
  const bool is_errno = error.category() == boost::system::system_category();
  return {is_errno ? error.value() : EPROTO, std::move(text)};
}

Failure no_rtrs(const PathAddress& address, std::string_view why) {
  return {EPROTO, name_of(address) + " does not speak RTRS over TCP: " + std::string{why}};
}

/// A socket that is closed after `patience`, so that operations on it end.
std::shared_ptr<tcp::socket> make_socket(const asio::any_io_executor& executor, Duration patience) {
  auto socket = std::make_shared<tcp::socket>(executor);
  auto timer = std::make_shared<asio::steady_timer>(executor, patience);
  timer->async_wait([timer, watched = std::weak_ptr{socket}](boost::system::error_code) {
    boost::system::error_code ignored;
    if (const auto late = watched.lock()) late->close(ignored);
  });
  return socket;
}

using SharedSocket = std::shared_ptr<tcp::socket>;

asio::awaitable<tl::expected<SharedSocket, Failure>> connect(const ConnectOptions& options) {
  const PathAddress& address = options.address;
  const SharedSocket socket = make_socket(co_await asio::this_coro::executor, options.patience);
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

/// The magic first: a peer of another kind may never send as much as a whole hello.
asio::awaitable<tl::expected<Hello, boost::system::error_code>> exchange_hellos(tcp::socket& socket,
                                                                                tls::Session* tls,
                                                                                Hello ours) {
  Hello theirs;
  const auto bytes = std::as_writable_bytes(std::span{&theirs, 1});
  auto failed = co_await write_all(socket, tls, std::as_bytes(std::span{&ours, 1}));
  if (!failed) failed = co_await read_all(socket, tls, bytes.first(sizeof(theirs.magic)));
  if (!failed && theirs.magic == kHelloMagic) {
    failed = co_await read_all(socket, tls, bytes.subspan(sizeof(theirs.magic)));
  }
  if (failed) co_return tl::unexpected(failed);
  co_return theirs;
}

/// A server that refuses a client may say so only when the client thinks that it is in.
Failure explain_hello(const ConnectOptions& options, const tls::Session* tls,
                      const boost::system::error_code& error) {
  const PathAddress& address = options.address;
  if (tls != nullptr && tls->failure().error == EACCES) {
    return {EACCES, name_of(address) + ": " + tls->failure().text};
  }
  if (error == asio::error::eof || error == asio::error::connection_reset) {
    return {ECONNRESET, name_of(address) +
                            " closed the connection during the handshake (it is busy, or does not "
                            "speak RTRS over TCP)"};
  }
  return failure(address, error, "handshake failed with");
}

asio::awaitable<tl::expected<std::unique_ptr<tls::Session>, Failure>> secure(
    const ConnectOptions& options, tcp::socket& socket) {
  const std::string name = name_of(options.address);
  auto session = tls::Session::create(
      {.credentials = options.tls, .server_name = options.address.host, .protocol = kTlsProtocol});
  if (!session) co_return tl::unexpected(session.error());
  const auto done = co_await shake_hands(socket, **session);
  if (done) co_return std::move(*session);
  Failure why = done.error();
  why.text = name + ": " + why.text;
  if (why.error == ECONNRESET) why.text += " (does that listener have TLS, is it busy?)";
  co_return tl::unexpected(std::move(why));
}

}  // namespace

int open_socket(int family) {
  return ::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
}

/// Connection 0 is the only one of a path that always has something to say. A firewall that forgets
/// idle connections must not forget the others. If it has, they are better lost before somebody
/// needs them. Source: tcp(7); seconds.
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
  const SharedSocket& socket = *connected;
  tune_socket(socket->native_handle());

  std::unique_ptr<tls::Session> tls;
  if (options.tls) {
    auto secured = co_await secure(options, *socket);
    if (!secured) co_return tl::unexpected(secured.error());
    tls = *std::move(secured);
  }
  const auto theirs =
      co_await exchange_hellos(*socket, tls.get(), make_hello(wire::bytes_of(request), digests));
  if (!theirs) co_return tl::unexpected(explain_hello(options, tls.get(), theirs.error()));
  if (theirs->magic != kHelloMagic) co_return tl::unexpected(explain_magic(address, *theirs));
  const auto hello = decode_hello(wire::bytes_of(*theirs));
  if (!hello) co_return tl::unexpected(no_rtrs(address, to_string(hello.error())));
  const std::uint16_t chosen = hello->digests;
  if ((chosen & ~digests) != 0) {
    co_return tl::unexpected(no_rtrs(address, "it chose digests that were not offered"));
  }
  // Behind a refusal comes the end of TLS, which may be here already.
  const auto answer = wire::decode_connect_response(hello->record);
  const bool refused = answer && answer->error != 0;
  if (tls && !refused && tls->has_more()) {
    co_return tl::unexpected(no_rtrs(address, "there is more behind its hello than may be there"));
  }
  Opened opened;
  opened.record = hello->record;
  opened.connection = std::make_unique<TcpQueuePair>(
      Stream{socket->release(), std::move(tls)},
      Digests{.header = (chosen & kDigestHeader) != 0, .data = (chosen & kDigestData) != 0});
  co_return opened;
}

}  // namespace rtrs::tcp
