// SPDX-License-Identifier: BSD-3-Clause
// Host names to addresses, without blocking the event loop.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/address.hpp>
#include <functional>
#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/client.hpp"

namespace rtrs {

/// "storage:1234", "[fd00::1]:1234": a path's other end, for messages.
std::string name_of(const PathAddress& address);

/// The numeric addresses of a name to listen on, each once. Text that is no name for the resolver
/// stays as it is: a numeric address, one for the transport (gid:...), "" and "*".
///
/// Errors: EHOSTUNREACH (no name server answers), ENXIO, with the resolver's sentence. Blocks as
/// long as the resolver.
tl::expected<std::vector<std::string>, Failure> addresses_of_listener(const std::string& host);

/// Finds a host's addresses for one attempt to connect after another, and remembers them: a host
/// can be reached although its name server cannot.
///
/// Threads: that of the io_context on which find() runs; held by a shared pointer, because a search
/// may outlast its asker.
class HostLookup : public std::enable_shared_from_this<HostLookup> {
 public:
  using Addresses = std::vector<boost::asio::ip::address>;
  /// Blocks; called in a thread of its own.
  using Resolver = std::function<tl::expected<Addresses, Failure>(const std::string& host)>;

  /// `resolver` is for tests; null means getaddrinfo().
  explicit HostLookup(std::string host, Resolver resolver = nullptr);

  /// The addresses, best first; a numeric one is its own, and one for the transport (gid:...) has
  /// none. Addresses from before are taken when the resolver fails, or needs longer than a second.
  ///
  /// Errors: EHOSTUNREACH (no name server answers), ENXIO, with the resolver's sentence; ETIMEDOUT
  /// after `patience`. Source: getaddrinfo(3).
  boost::asio::awaitable<tl::expected<Addresses, Failure>> find(Duration patience);

 private:
  struct Search;

  std::string host_;
  Resolver resolver_;
  Addresses known_;
  std::shared_ptr<Search> search_;  ///< under way; at most one, however long it takes
};

}  // namespace rtrs
