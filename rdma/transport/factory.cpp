// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/factory.hpp"

#include <utility>

#include "rdma/transport/tcp/acceptor.hpp"
#include "rdma/transport/tcp/connector.hpp"
#include "rdma/transport/verbs/acceptor.hpp"
#include "rdma/transport/verbs/connector.hpp"

namespace rtrs {

boost::asio::awaitable<tl::expected<Opened, Failure>> open_connection(
    ConnectOptions options, wire::ConnectRequest request, QueueSizes sizes,
    std::shared_ptr<PathContext>& context) {
  if (options.address.transport == TransportKind::rdma) {
    return verbs::open_connection(std::move(options), request, sizes, context);
  }
  return tcp::open_connection(std::move(options), request);
}

tl::expected<std::unique_ptr<Acceptor>, Failure> listen(Reactor& reactor,
                                                        const ListenAddress& address,
                                                        AcceptorOptions options) {
  if (address.transport == TransportKind::rdma) {
    return verbs::listen(reactor, address, options);
  }
  return tcp::listen(reactor, address, std::move(options));
}

tl::expected<std::unique_ptr<Acceptor>, Failure> adopt(Reactor& reactor, int descriptor,
                                                       AcceptorOptions options) {
  return tcp::adopt(reactor, descriptor, std::move(options));
}

}  // namespace rtrs
