// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/greeting.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "rdma/transport/await.hpp"
#include "rdma/transport/tcp/frame.hpp"
#include "rdma/transport/tcp/queue_pair.hpp"
#include "rdma/transport/tls/credentials.hpp"

namespace rtrs::tcp {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
constexpr unsigned char kTlsHandshake = 0x16;  ///< the first byte of a ClientHello's record

tl::unexpected<Refusal> no_handshake(const std::string& why) {
  return tl::unexpected(Refusal{LogLevel::info, "no handshake (" + why + ")"});
}

/// The first byte, which stays to be read.
asio::awaitable<tl::expected<unsigned char, error_code>> peek(AsioSocket& socket) {
  for (;;) {
    auto [failed] = co_await socket.async_wait(AsioSocket::wait_read, kAwait);
    if (failed) co_return tl::unexpected(failed);
    if (!socket.is_open()) {
      co_return tl::unexpected(error_code{asio::error::operation_aborted});
    }
    unsigned char first = 0;
    const ssize_t n = ::recv(socket.native_handle(), &first, 1, MSG_PEEK | MSG_DONTWAIT);
    if (n == 1) co_return first;
    if (n == 0) co_return tl::unexpected(error_code{asio::error::eof});
    if (errno != EAGAIN && errno != EINTR) {
      co_return tl::unexpected(error_code{errno, boost::system::system_category()});
    }
  }
}

/// Waits for so many bytes, which stay to be read, or for the end of the stream.
asio::awaitable<error_code> await_bytes(AsioSocket& socket, std::size_t size) {
  const int least = static_cast<int>(size);
  (void)::setsockopt(socket.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &least, sizeof(least));
  auto [failed] = co_await socket.async_wait(AsioSocket::wait_read, kAwait);
  if (!failed && !socket.is_open()) failed = asio::error::operation_aborted;
  co_return failed;
}

/// The size of the record at the beginning of a stream, if a whole ClientHello is in it, which has
/// a few hundred bytes; 0: there is none.
std::size_t size_of_first_record(std::span<const unsigned char, 9> begin) {
  constexpr std::size_t kHeader = 5, kMessageHeader = 4, kMost = 8192;  // bytes
  const std::size_t record = begin[3] * 256U + begin[4];
  const std::size_t message = begin[6] * 65536U + begin[7] * 256U + begin[8];
  return record <= kMost && kMessageHeader + message <= record ? kHeader + record : 0;
}

/// Until its ClientHello is there, a stranger has none of our memory.
asio::awaitable<tl::expected<void, Refusal>> await_client_hello(AsioSocket& socket) {
  std::array<unsigned char, 9> begin{};
  error_code failed = co_await await_bytes(socket, begin.size());
  if (!failed && ::recv(socket.native_handle(), begin.data(), begin.size(),
                        MSG_PEEK | MSG_DONTWAIT) == static_cast<ssize_t>(begin.size())) {
    const std::size_t size = size_of_first_record(begin);
    if (size == 0) co_return no_handshake("what begins like TLS is no ClientHello in one record");
    failed = co_await await_bytes(socket, size);
  }
  if (failed) co_return no_handshake(failed.message());
  const int any = 1;
  (void)::setsockopt(socket.native_handle(), SOL_SOCKET, SO_RCVLOWAT, &any, sizeof(any));
  co_return tl::expected<void, Refusal>{};
}

asio::awaitable<tl::expected<std::unique_ptr<tls::Session>, Refusal>> secure(
    AsioSocket& socket, const ListenerTls& listener) {
  auto session = tls::Session::create(
      {.credentials = listener.keys->current(), .server_name = "", .protocol = kTlsProtocol});
  if (!session) {
    co_return tl::unexpected(Refusal{LogLevel::error, session.error().text});
  }
  const auto done = co_await shake_hands(socket, **session, listener.workers);
  if (done) co_return std::move(*session);
  const Failure& why = done.error();
  const bool left = why.error == ECONNRESET || why.error == ECANCELED;
  if (left) co_return no_handshake(why.text);
  const Identity claim = (*session)->claim();
  const bool claims = claim.how != Identity::How::none;
  co_return tl::unexpected(Refusal{.level = LogLevel::warning,
                                   .text = why.text,
                                   .answered = true,
                                   .of_auth = true,
                                   .how = claims ? to_string(claim.how) : "tls",
                                   .user = claim.name});
}

/// The magic first, so that a peer of another kind is sent away at once.
asio::awaitable<error_code> read_hello(AsioSocket& socket, tls::Session* tls, Hello& hello) {
  const auto bytes = std::as_writable_bytes(std::span{&hello, 1});
  const std::size_t magic = sizeof(hello.magic);
  const auto failed = co_await read_all(socket, tls, bytes.first(magic));
  if (failed || hello.magic != kHelloMagic) co_return failed;
  co_return co_await read_all(socket, tls, bytes.subspan(magic));
}

/// Tells a client that speaks in clear that TLS is required.
void demand_tls(AsioSocket& socket) {
  const auto answer = wire::encode_reject(EPROTONOSUPPORT);
  const Hello hello = make_hello(wire::bytes_of(answer), 0);
  (void)::send(socket.native_handle(), &hello, sizeof(hello), MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace

asio::awaitable<tl::expected<Greeting, Refusal>> receive_greeting(AsioSocket& socket,
                                                                  const AcceptorOptions& options) {
  Greeting greeting;
  const auto first = co_await peek(socket);
  if (!first) {
    const bool silent = first.error() == asio::error::operation_aborted;
    co_return no_handshake(
        silent ? "it said nothing; so do NBD clients, which need nbdkit or rnbd-bridge in between"
               : first.error().message());
  }
  const TlsMode mode = options.tls.mode;
  if (*first == kTlsHandshake) {
    if (mode == TlsMode::off) {
      co_return tl::unexpected(
          Refusal{LogLevel::info, std::string{"refused: "} + options.words->tls_is_off});
    }
    if (const auto there = co_await await_client_hello(socket); !there) {
      co_return tl::unexpected(there.error());
    }
    auto session = co_await secure(socket, options.tls);
    if (!session) co_return tl::unexpected(session.error());
    greeting.tls = *std::move(session);
  }
  Hello bytes;
  if (const auto failed = co_await read_hello(socket, greeting.tls.get(), bytes)) {
    co_return no_handshake(failed.message());
  }
  const auto hello = decode_hello(wire::bytes_of(bytes));
  if (!hello) {
    co_return tl::unexpected(
        Refusal{LogLevel::info, std::string{"refused: "} + to_string(hello.error())});
  }
  if (mode == TlsMode::require && !greeting.tls) {
    demand_tls(socket);
    co_return tl::unexpected(Refusal{.level = LogLevel::warning,
                                     .text = "it comes without TLS, which this listener requires",
                                     .answered = true,
                                     .of_auth = true,
                                     .how = "none"});
  }
  if (greeting.tls && greeting.tls->has_more()) {
    co_return tl::unexpected(
        Refusal{LogLevel::info, "refused: there is more behind its hello than may be there"});
  }
  const int wanted =
      (options.header_digest ? kDigestHeader : 0) | (options.data_digest ? kDigestData : 0);
  greeting.record = hello->record;
  greeting.digests = static_cast<std::uint16_t>(hello->digests & wanted);
  co_return greeting;
}

asio::awaitable<void> let_read(AsioSocket& socket) {
  constexpr std::size_t kMost = 64 * 1024;  ///< bytes; a client that sends more does not listen
  error_code ignored;
  socket.shutdown(AsioSocket::shutdown_send, ignored);
  std::array<char, 1024> nothing;
  for (std::size_t read = 0; read < kMost && socket.is_open();) {
    auto [failed, n] = co_await socket.async_read_some(asio::buffer(nothing), kAwait);
    if (failed) co_return;
    read += n;
  }
}

TcpIncoming::TcpIncoming(Stream stream, std::uint16_t digests)
    : own_{std::move(stream)}, stream_{&own_}, digests_{digests} {
  if (const Identity* const proven = own_.peer()) identity = *proven;
}

/// A hello fits into the empty buffer of a new socket, so this never blocks.
bool TcpIncoming::send_record(const wire::ConnectResponse& answer, std::uint16_t digests) {
  Hello hello = make_hello(wire::bytes_of(answer), digests);
  const std::array<iovec, 1> piece{{{&hello, sizeof(hello)}}};
  const ssize_t n = stream_->send(piece);
  errno = n < 0 ? static_cast<int>(-n) : EIO;  // of a socket that took a part only
  return n == static_cast<ssize_t>(sizeof(hello)) && !stream_->has_unsent();
}

void TcpIncoming::reject(const wire::ConnectResponse& answer) { send_record(answer, 0); }

tl::expected<std::unique_ptr<Connection>, Failure> TcpIncoming::open(
    const QueueSizes& sizes, std::shared_ptr<PathContext>& context) {
  if (sizes.regions && context == nullptr) context = std::make_shared<RegionTable>();
  auto queue_pair = std::make_unique<TcpQueuePair>(
      std::move(own_),
      Digests{.header = (digests_ & kDigestHeader) != 0, .data = (digests_ & kDigestData) != 0},
      std::dynamic_pointer_cast<RegionTable>(context));
  stream_ = &queue_pair->stream();
  return queue_pair;
}

tl::expected<void, Failure> TcpIncoming::accept(const wire::ConnectResponse& answer) {
  if (!send_record(answer, digests_)) return tl::unexpected(broke_while_accepted(errno));
  return {};
}

}  // namespace rtrs::tcp
