// SPDX-License-Identifier: BSD-3-Clause
// Opens one connection of a path over verbs: make the queue pair, connect.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <tl/expected.hpp>

#include "rdma/transport/factory.hpp"

namespace rtrs::verbs {

/// See rtrs::open_connection().
boost::asio::awaitable<tl::expected<Opened, Failure>> open_connection(
    ConnectOptions options, wire::ConnectRequest request, QueueSizes sizes,
    std::shared_ptr<PathContext>& context);

}  // namespace rtrs::verbs
