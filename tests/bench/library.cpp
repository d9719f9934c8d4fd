// SPDX-License-Identifier: BSD-3-Clause
// What a call of librtrs costs beside a bare TCP connection, interleaved in one run:
//   bench-library [ROUNDS]
//
// GET of 64 bytes, one after another: median and 99th percentile of both. Then 64 MiB to a server
// and back in one call, beside the same bytes through the bare connection. Server and clients are
// one process, with a thread each.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "rdma/library/include/rtrs.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kSmall = 64;
constexpr std::size_t kLarge = 64U << 20;
constexpr int kCalls = 2000;  ///< per round

double microseconds(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

[[noreturn]] void die(const char* what) {
  std::perror(what);
  std::exit(1);
}

/// Ends with the program when the other side is gone.
bool receive(int socket, std::string& into) {
  return recv(socket, into.data(), into.size(), MSG_WAITALL) == static_cast<ssize_t>(into.size());
}
void send_all(int socket, const std::string& data) {
  for (std::size_t sent = 0; sent < data.size();) {
    const ssize_t some = send(socket, data.data() + sent, data.size() - sent, MSG_NOSIGNAL);
    if (some <= 0) die("send");
    sent += static_cast<std::size_t>(some);
  }
}

/// A bare connection whose other end sends back each 64 bytes, and the 64 MiB when all are there.
class Bare {
 public:
  Bare() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const where = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener, where, size) != 0 || listen(listener, 1) != 0) die("listen");
    getsockname(listener, where, &size);
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(socket_, where, size) != 0) die("connect");
    const int other = accept(listener, nullptr, nullptr);
    for (const int end : {socket_, other}) {
      const int on = 1;
      setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    close(listener);
    thread_ = std::thread{[other] {
      std::string small(kSmall, '\0'), large(kLarge, '\0');
      char kind = 0;
      while (recv(other, &kind, 1, MSG_WAITALL) == 1) {
        std::string& data = kind == 's' ? small : large;
        if (!receive(other, data)) break;
        send_all(other, data);
      }
      close(other);
    }};
  }
  ~Bare() {
    close(socket_);
    thread_.join();
  }
  void ask(const std::string& out, std::string& in) {
    if (out.size() == kSmall) {
      send_all(socket_, "s" + out);
    } else {
      send_all(socket_, "l");
      send_all(socket_, out);
    }
    if (!receive(socket_, in)) die("recv");
  }

 private:
  int socket_;
  std::thread thread_;
};

/// The same by a call.
class Library {
 public:
  Library() {
    rtrs_server_ops ops{};
    ops.size = sizeof(ops);
    ops.request = [](void*, const rtrs_incoming* incoming) {
      if (incoming->data_length <= kSmall) {
        return rtrs_finish(incoming->request, 0, incoming->data, incoming->data_length);
      }
      const std::size_t length = incoming->data_length;
      void* const data = rtrs_take_data(incoming->request);
      rtrs_finish_with(incoming->request, data, length, std::free, data);
    };
    rtrs_error error{};
    server_ = rtrs_listen("rtrs+tcp://127.0.0.1:0", &ops, nullptr, nullptr, &error);
    if (server_ == nullptr) die(error.text);
    const auto uri = "rtrs+tcp://127.0.0.1:" + std::to_string(rtrs_server_port(server_));
    client_ = rtrs_connect(uri.c_str(), nullptr, &error);
    if (client_ == nullptr) die(error.text);
  }
  ~Library() {
    rtrs_disconnect(client_);
    rtrs_server_close(server_, 1000);
  }
  void ask(const std::string& out, std::string& in) {
    const iovec from{const_cast<char*>(out.data()), out.size()};
    const iovec to{in.data(), in.size()};
    std::size_t length = 0;
    const int failed = rtrs_call(client_, "get", 3, &from, 1, &to, 1, &length, 0);
    if (failed != 0 || length != in.size()) die(rtrs_strerror(failed));
  }

 private:
  rtrs_server* server_;
  rtrs_client* client_;
};

struct Times {
  std::vector<double> small, large;

  template <class Way>
  void measure(Way& way) {
    std::string out(kSmall, 'x'), in(kSmall, '\0');
    for (int i = 0; i < kCalls; ++i) {
      const auto began = Clock::now();
      way.ask(out, in);
      small.push_back(microseconds(Clock::now() - began));
      if (in != out) die("other bytes came back");
    }
    out.assign(kLarge, 'y');
    in.assign(kLarge, '\0');
    const auto began = Clock::now();
    way.ask(out, in);
    large.push_back(microseconds(Clock::now() - began));
    if (in != out) die("other bytes came back");
  }
  static double at(std::vector<double>& all, double part) {
    std::ranges::sort(all);
    return all[static_cast<std::size_t>(part * static_cast<double>(all.size() - 1))];
  }
  void report(const char* name) {
    std::printf("%-8s GET 64 bytes: p50 %6.1f us, p99 %6.1f us   64 MiB and back: %5.2f GB/s\n",
                name, at(small, 0.5), at(small, 0.99), 2e-3 * kLarge / at(large, 0.5));
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 5;
  Bare bare;
  Library library;
  Times of_bare, of_library;
  for (int i = 0; i < rounds; ++i) {
    of_bare.measure(bare);
    of_library.measure(library);
  }
  of_bare.report("bare TCP");
  of_library.report("librtrs");
}
