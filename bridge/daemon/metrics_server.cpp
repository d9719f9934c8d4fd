// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/metrics_server.hpp"

#include <netdb.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <list>
#include <string_view>
#include <thread>
#include <utility>

namespace rnbd {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::experimental::awaitable_operators::operator||;
using Socket = asio::ip::tcp::socket;

constexpr auto kMetricsAwait = asio::as_tuple(asio::use_awaitable);
constexpr std::chrono::seconds kTimeForRequest{5};
constexpr std::chrono::seconds kTimeToTakePage{10};
/// For a client to close first, so that bytes which it has still sent do not cost it the answer.
constexpr std::chrono::seconds kTimeToLeave{1};
constexpr std::chrono::milliseconds kPauseWithoutDescriptors{250};
constexpr std::size_t kLongestRequest = 8192;  ///< bytes, with its header fields
constexpr std::size_t kMostReaders = 16;
constexpr const char* kPageType = "text/plain; version=0.0.4; charset=utf-8";

std::string answer_with(std::string_view status, std::string_view body, bool with_body,
                        const char* type = "text/plain; charset=utf-8") {
  std::string answer = "HTTP/1.1 ";
  answer.append(status).append("\r\nContent-Type: ").append(type);
  answer += "\r\nContent-Length: " + std::to_string(body.size());
  answer += "\r\nCache-Control: no-store\r\nConnection: close\r\n";
  if (status.starts_with("405")) answer += "Allow: GET, HEAD\r\n";
  answer += "\r\n";
  if (with_body) answer += body;
  return answer;
}

/// Behind the end of the header fields; 0: they have not ended.
std::size_t end_of_request(std::string_view input) {
  for (const std::string_view end : {"\r\n\r\n", "\n\n"}) {
    const std::size_t at = input.find(end);
    if (at != std::string_view::npos) return at + end.size();
  }
  return 0;
}

/// Cuts a word off a request line.
std::string_view take_word(std::string_view& line) {
  const std::size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

std::string answer_to(std::string_view request, const MetricsServer::Page& page) {
  std::string_view line = request.substr(0, std::min(request.find('\n'), request.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  const std::string_view method = take_word(line);
  std::string_view target = take_word(line);
  if (!line.starts_with("HTTP/1.") || !target.starts_with('/')) {
    return answer_with("400 Bad Request", "this is no request of HTTP/1.1\n", true);
  }
  const bool with_body = method != "HEAD";
  if (with_body && method != "GET") {
    return answer_with("405 Method Not Allowed", "use GET\n", true);
  }
  target = target.substr(0, target.find('?'));
  if (target != "/metrics") {
    return answer_with("404 Not Found", "the metrics are at /metrics\n", with_body);
  }
  try {
    return answer_with("200 OK", page(), with_body, kPageType);
  } catch (const std::exception& error) {
    return answer_with("500 Internal Server Error", std::string{error.what()} + '\n', with_body);
  }
}

std::string text_of(const asio::ip::tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  const bool brackets = endpoint.address().is_v6();
  return (brackets ? "[" + host + "]" : host) + ':' + std::to_string(endpoint.port());
}

tl::expected<int, std::string> listen_at(const MetricsAddress& address) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host == "*" ? nullptr : address.host.c_str(),
                                  std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) return tl::unexpected(std::string{::gai_strerror(error)});
  std::string why;
  int listening = -1;
  for (const addrinfo* each = found; each != nullptr && listening < 0; each = each->ai_next) {
    const int fd = ::socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    if (fd >= 0) ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (fd >= 0 && ::bind(fd, each->ai_addr, each->ai_addrlen) == 0 &&
        ::listen(fd, static_cast<int>(kMostReaders)) == 0) {
      listening = fd;
      break;
    }
    why = std::strerror(errno);
    if (fd >= 0) ::close(fd);
  }
  ::freeaddrinfo(found);
  if (listening < 0) return tl::unexpected(why);
  return listening;
}

asio::ip::tcp protocol_of(int fd) {
  int domain = AF_INET;
  socklen_t size = sizeof(domain);
  ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size);
  return domain == AF_INET6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4();
}

}  // namespace

class MetricsServer::Server {
 public:
  Server(int fd, Page page) : page_{std::move(page)}, acceptor_{io_, protocol_of(fd), fd} {
    address_ = text_of(acceptor_.local_endpoint());
    asio::co_spawn(io_, accept(), asio::detached);
    thread_ = std::thread{[this] {
      pthread_setname_np(pthread_self(), "rnbd-metrics");
      io_.run();
    }};
  }
  ~Server() {
    io_.stop();
    thread_.join();
  }

  const std::string& address() const { return address_; }

 private:
  awaitable<void> accept() {
    asio::steady_timer pause{io_};
    for (;;) {
      auto [error, socket] = co_await acceptor_.async_accept(kMetricsAwait);
      if (error) {
        pause.expires_after(kPauseWithoutDescriptors);
        co_await pause.async_wait(kMetricsAwait);
      } else {
        asio::co_spawn(io_, serve(std::move(socket)), asio::detached);
      }
    }
  }

  awaitable<void> serve(Socket socket) {
    if (readers_.size() >= kMostReaders) {
      boost::system::error_code ignored;
      readers_.front()->close(ignored);
      readers_.pop_front();
    }
    struct Place {
      std::list<Socket*>& readers;
      Socket& socket;
      ~Place() { readers.remove(&socket); }
    } const place{readers_, socket};
    readers_.push_back(&socket);
    std::string request;
    asio::steady_timer limit{io_, kTimeForRequest};
    const auto asked = co_await (receive(socket, request) || limit.async_wait(kMetricsAwait));
    if (asked.index() != 0 || !std::get<0>(asked)) co_return;
    const std::string answer =
        end_of_request(request) != 0
            ? answer_to(request, page_)
            : answer_with("431 Request Header Fields Too Large", "too long\n", true);
    limit.expires_after(kTimeToTakePage);
    const auto sent = co_await (asio::async_write(socket, asio::buffer(answer), kMetricsAwait) ||
                                limit.async_wait(kMetricsAwait));
    if (sent.index() != 0 || std::get<0>(std::get<0>(sent))) co_return;
    boost::system::error_code ignored;
    socket.shutdown(Socket::shutdown_send, ignored);
    limit.expires_after(kTimeToLeave);
    co_await (see_off(socket) || limit.async_wait(kMetricsAwait));
  }

  /// False: the client has left. True: there is a request, or more than one may have.
  static awaitable<bool> receive(Socket& socket, std::string& request) {
    std::array<char, 1024> piece{};
    while (end_of_request(request) == 0 && request.size() < kLongestRequest) {
      const auto [error, size] =
          co_await socket.async_read_some(asio::buffer(piece), kMetricsAwait);
      if (error) co_return false;
      request.append(piece.data(), size);
    }
    co_return true;
  }

  static awaitable<void> see_off(Socket& socket) {
    std::array<char, 1024> piece{};
    for (;;) {
      const auto [error, size] =
          co_await socket.async_read_some(asio::buffer(piece), kMetricsAwait);
      if (error) co_return;
    }
  }

  std::list<Socket*> readers_;  ///< oldest first; before the loop: its end ends those left
  Page page_;
  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_;
  std::string address_;
  std::thread thread_;
};

tl::expected<std::unique_ptr<MetricsServer>, std::string> MetricsServer::open(
    const MetricsAddress& address, Page page) {
  const auto fd = listen_at(address);
  if (!fd) {
    return tl::unexpected("cannot serve metrics at " + address.host + ':' +
                          std::to_string(address.port) + ": " + fd.error() +
                          "; name another address with --metrics");
  }
  return std::unique_ptr<MetricsServer>{
      new MetricsServer{std::make_unique<Server>(*fd, std::move(page))}};
}

MetricsServer::MetricsServer(std::unique_ptr<Server> server) : server_{std::move(server)} {}
MetricsServer::~MetricsServer() = default;
const std::string& MetricsServer::address() const { return server_->address(); }

}  // namespace rnbd
