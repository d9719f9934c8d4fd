// SPDX-License-Identifier: BSD-3-Clause
// Coroutines that get errors as values.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace rtrs {

/// `auto [error, ...] = co_await socket.async_...(..., kAwait)`: nothing throws.
inline constexpr auto kAwait = boost::asio::as_tuple(boost::asio::use_awaitable);

}  // namespace rtrs
