// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/resolve.hpp"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/this_coro.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <string_view>
#include <thread>
#include <utility>

#include "rdma/host_name.hpp"
#include "rdma/transport/await.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;
/// The pause between two looks whether a name has been found.
constexpr auto kFirstLook = std::chrono::milliseconds{1};
constexpr auto kLongestLook = std::chrono::milliseconds{50};

/// The time that the resolver may take when there are addresses from before.
constexpr auto kShortPatience = std::chrono::seconds{1};
/// Addresses that are none of the Internet's; the transport reads them itself.
constexpr std::string_view kGidPrefix = "gid:";

tl::expected<HostLookup::Addresses, Failure> ask_system(const std::string& host, int flags) {
  const auto found = resolve_host(host, flags);
  if (!found) return tl::unexpected(found.error());
  HostLookup::Addresses addresses;
  for (const addrinfo* at = found->get(); at != nullptr; at = at->ai_next) {
    asio::ip::tcp::endpoint endpoint;
    if (at->ai_addrlen > endpoint.capacity()) continue;
    std::memcpy(endpoint.data(), at->ai_addr, at->ai_addrlen);
    addresses.push_back(endpoint.address());
  }
  return addresses;
}

tl::expected<HostLookup::Addresses, Failure> find_peer(const std::string& host) {
  return ask_system(host, AI_ADDRCONFIG);
}

}  // namespace

tl::expected<std::vector<std::string>, Failure> addresses_of_listener(const std::string& host) {
  boost::system::error_code error;
  (void)asio::ip::make_address(host, error);
  const bool is_name = error && !host.empty() && host != "*" && !host.starts_with(kGidPrefix);
  if (!is_name) return std::vector<std::string>{host};
  const auto found = ask_system(host, AI_PASSIVE);
  if (!found) return tl::unexpected(found.error());
  std::vector<std::string> addresses;
  for (const auto& address : *found) {
    if (std::ranges::count(addresses, address.to_string()) == 0) {
      addresses.push_back(address.to_string());
    }
  }
  return addresses;
}

std::string name_of(const PathAddress& address) {
  const bool is_ipv6 = address.host.find(':') != std::string::npos;
  return (is_ipv6 ? '[' + address.host + ']' : address.host) + ':' + std::to_string(address.port);
}

/// A name being looked up in a thread of its own. The call getaddrinfo(3) cannot be interrupted and
/// may take minutes, and Asio's resolver waits for it when it is destroyed. A caller that gives up
/// here just leaves.
struct HostLookup::Search {
  tl::expected<Addresses, Failure> result;
  std::atomic<bool> done{false};
};

HostLookup::HostLookup(std::string host, Resolver resolver)
    : host_{std::move(host)}, resolver_{resolver ? std::move(resolver) : find_peer} {}

asio::awaitable<tl::expected<HostLookup::Addresses, Failure>> HostLookup::find(Duration patience) {
  boost::system::error_code error;
  const auto literal = asio::ip::make_address(host_, error);
  if (!error) co_return Addresses{literal};
  if (host_.starts_with(kGidPrefix)) co_return Addresses{};

  const auto self = shared_from_this();
  if (search_ && search_->done) {  // it came too late for the attempt before
    if (search_->result && !search_->result->empty()) known_ = *search_->result;
    search_.reset();
  }
  if (!search_) {
    search_ = std::make_shared<Search>();
    std::thread{[search = search_, resolver = resolver_, host = host_] {
      search->result = resolver(host);
      search->done.store(true, std::memory_order_release);
    }}.detach();
  }
  const auto search = search_;
  const auto until = std::chrono::steady_clock::now() +
                     (known_.empty() ? patience : std::min<Duration>(patience, kShortPatience));
  asio::steady_timer pause{co_await asio::this_coro::executor};
  // Asked again and again, so that the thread need not know whether anybody still waits.
  for (auto time = kFirstLook; !search->done.load(std::memory_order_acquire);
       time = std::min(2 * time, kLongestLook)) {
    if (std::chrono::steady_clock::now() >= until) {
      if (!known_.empty()) co_return known_;
      co_return tl::unexpected(Failure{
          ETIMEDOUT, "finding the address of host '" + host_ +
                         "' takes too long (does the name server answer? a numeric address needs "
                         "none)"});
    }
    pause.expires_after(time);
    co_await pause.async_wait(kAwait);
  }
  if (search_ == search) search_.reset();
  if (search->result && !search->result->empty()) known_ = *search->result;
  if (!known_.empty()) co_return known_;
  co_return search->result;
}

}  // namespace rtrs
