// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/secure.hpp"

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <cstring>

#include "rdma/transport/await.hpp"

namespace rtrs::tcp {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;
using Step = tls::Session::Step;

error_code system_error(int number) { return {number, boost::system::system_category()}; }

/// Errors: operation_aborted when the socket was closed meanwhile.
asio::awaitable<error_code> wait(AsioSocket& socket, AsioSocket::wait_type what) {
  auto [failed] = co_await socket.async_wait(what, kAwait);
  if (!failed && !socket.is_open()) failed = asio::error::operation_aborted;
  co_return failed;
}

asio::awaitable<error_code> flush(AsioSocket& socket, tls::Session& session) {
  for (;;) {
    if (const int error = session.flush(socket.native_handle()); error != 0) {
      co_return system_error(error);
    }
    if (!session.has_output()) co_return error_code{};
    if (const auto failed = co_await wait(socket, AsioSocket::wait_write)) co_return failed;
  }
}

asio::awaitable<Step> step(tls::Session& session, const asio::any_io_executor& workers) {
  if (!workers) co_return session.shake_hands();
  const auto work = [&session]() -> asio::awaitable<Step> { co_return session.shake_hands(); };
  co_return co_await asio::co_spawn(workers, work, asio::use_awaitable);
}

}  // namespace

asio::awaitable<tl::expected<void, Failure>> shake_hands(AsioSocket& socket, tls::Session& session,
                                                         asio::any_io_executor workers) {
  const auto broken = [](const error_code& error) {
    return tl::unexpected(Failure{
        error == asio::error::operation_aborted ? ECANCELED : error.value(), error.message()});
  };
  const bool server = session.credentials().role() == tls::Role::server;  // it listens first
  for (Step reached = server ? Step::receive : co_await step(session, workers);;
       reached = co_await step(session, workers)) {
    if (!socket.is_open()) co_return broken(asio::error::operation_aborted);
    const error_code unsent = co_await flush(socket, session);
    if (reached == Step::failed) co_return tl::unexpected(session.failure());
    if (unsent) co_return broken(unsent);
    if (reached == Step::done) co_return tl::expected<void, Failure>{};
    ssize_t received = -EAGAIN;
    while (received == -EAGAIN) {
      if (const auto failed = co_await wait(socket, AsioSocket::wait_read)) {
        co_return broken(failed);
      }
      received = session.fetch(socket.native_handle());
    }
    if (received < 0) co_return broken(system_error(static_cast<int>(-received)));
  }
}

asio::awaitable<error_code> read_all(AsioSocket& socket, tls::Session* session,
                                     std::span<std::byte> into) {
  if (session == nullptr) {
    auto [failed, n] =
        co_await asio::async_read(socket, asio::buffer(into.data(), into.size()), kAwait);
    if (!failed && !socket.is_open()) failed = asio::error::operation_aborted;
    co_return failed;
  }
  while (!into.empty()) {
    const std::array<iovec, 1> piece{{{into.data(), into.size()}}};
    const ssize_t n = session->receive(socket.native_handle(), piece);
    if (n > 0) into = into.subspan(static_cast<std::size_t>(n));
    if (n == 0) co_return asio::error::eof;
    if (n < 0 && n != -EAGAIN) co_return system_error(static_cast<int>(-n));
    if (n == -EAGAIN) {
      if (const auto failed = co_await wait(socket, AsioSocket::wait_read)) co_return failed;
    }
  }
  co_return error_code{};
}

asio::awaitable<error_code> write_all(AsioSocket& socket, tls::Session* session,
                                      std::span<const std::byte> from) {
  if (session == nullptr) {
    auto [failed, n] =
        co_await asio::async_write(socket, asio::buffer(from.data(), from.size()), kAwait);
    co_return failed;
  }
  const std::array<iovec, 1> piece{{{const_cast<std::byte*>(from.data()), from.size()}}};
  const ssize_t n = session->send(socket.native_handle(), piece);
  if (n < 0) co_return system_error(static_cast<int>(-n));
  co_return co_await flush(socket, *session);
}

}  // namespace rtrs::tcp
