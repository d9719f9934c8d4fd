// Host names to addresses, without blocking the event loop.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/address.hpp>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/client.hpp"

namespace rtrs {

/// The addresses of a host, best first; a numeric address is its own.
///
/// Errors: EHOSTUNREACH with the resolver's sentence.
/// Source: getaddrinfo(3).
boost::asio::awaitable<tl::expected<std::vector<boost::asio::ip::address>, Failure>> resolve(
    std::string host);

}  // namespace rtrs
