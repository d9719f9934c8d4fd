// SPDX-License-Identifier: BSD-3-Clause
// One measurement of librtrs, or of something that it is compared with, over TCP on this machine:
//   bench-library WAY CASE SECONDS MIB
//   bench-library serve URI MIB
//
// Ways: bare (a TCP connection), lane (requests of RTRS, as the library itself sends them),
// librtrs, plain (librtrs without checksums, which TCP connections of others have not). Cases:
// get-1, get-32 (64 bytes, so many at once; not on a lane), put (MIB to the server in one call),
// get (back). Server and client are one process, with a thread each. Prints JSON.
//
// A WAY that is a URI is librtrs with the server there, which `serve` has started, with the same
// MIB. Large data are registered memory then.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/core/client/lane.hpp"
#include "rdma/library/include/rtrs.h"
#include "rdma/server.hpp"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::size_t kSmall = 64;
constexpr unsigned kDepth = 32;

[[noreturn]] void die(std::string_view what) {
  std::fprintf(stderr, "bench-library: %.*s\n", static_cast<int>(what.size()), what.data());
  std::exit(1);
}
double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

/// One of the ways that are measured. A failure ends the program.
class Way {
 public:
  virtual ~Way() = default;
  virtual void get(std::string& /*in*/) { die("this way has no such case"); }
  /// Keeps kDepth of them under way until then; returns how many came back.
  virtual std::uint64_t get_many(Clock::time_point /*until*/) { die("no such case"); }
  virtual void put(const std::string& /*out*/) { die("this way has no such case"); }
  virtual void get_back(std::string& /*in*/) { die("this way has no such case"); }
  /// Memory that is used from now on.
  virtual void know(std::string& /*memory*/) {}
};

// ---- A bare connection --------------------------------------------------------------------------

bool receive(int socket, void* into, std::size_t size) {
  return recv(socket, into, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}
bool send_all(int socket, const char* data, std::size_t size) {
  for (std::size_t sent = 0; sent < size;) {
    const ssize_t some = send(socket, data + sent, size - sent, MSG_NOSIGNAL);
    if (some <= 0) return false;
    sent += static_cast<std::size_t>(some);
  }
  return true;
}

/// Its other end sends back what comes, or takes and gives `large` bytes when 64 bytes say so.
class Bare final : public Way {
 public:
  explicit Bare(std::size_t large) : large_(large, 'x') {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const where = reinterpret_cast<sockaddr*>(&address);
    if (bind(listener, where, size) != 0 || listen(listener, 1) != 0) die("cannot listen");
    getsockname(listener, where, &size);
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(socket_, where, size) != 0) die("cannot connect");
    const int other = accept(listener, nullptr, nullptr);
    for (const int end : {socket_, other}) {
      const int on = 1;
      setsockopt(end, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    }
    close(listener);
    thread_ = std::thread{[this, other] { serve(other); }};
  }
  ~Bare() override {
    close(socket_);
    thread_.join();
  }
  void get(std::string& in) override {
    if (!send_all(socket_, words('g').data(), kSmall) || !receive(socket_, in.data(), kSmall)) {
      die("the connection ended");
    }
  }
  std::uint64_t get_many(Clock::time_point until) override {
    std::string some(kDepth * kSmall, 'g');
    std::uint64_t bytes = 0;
    send_all(socket_, some.data(), some.size());
    std::size_t open = 0;  // bytes to be asked for again
    while (Clock::now() < until) {
      const ssize_t came = recv(socket_, some.data(), some.size(), 0);
      if (came <= 0) die("the connection ended");
      bytes += static_cast<std::uint64_t>(came);
      open += static_cast<std::size_t>(came);
      const std::size_t whole = open / kSmall * kSmall;
      std::memset(some.data(), 'g', whole);
      send_all(socket_, some.data(), whole);
      open -= whole;
    }
    return bytes / kSmall;
  }
  void put(const std::string& out) override {
    char done = 0;
    if (!send_all(socket_, words('p').data(), kSmall) ||
        !send_all(socket_, out.data(), out.size()) || !receive(socket_, &done, 1)) {
      die("the connection ended");
    }
  }
  void get_back(std::string& in) override {
    if (!send_all(socket_, words('b').data(), kSmall) || !receive(socket_, in.data(), in.size())) {
      die("the connection ended");
    }
  }

 private:
  static std::string words(char what) { return std::string(kSmall, what); }
  void serve(int other) {
    std::string some(kDepth * kSmall, '\0');
    for (ssize_t came = 0; (came = recv(other, some.data(), some.size(), 0)) > 0;) {
      bool alive = true;
      if (some[0] == 'p') {
        const std::size_t here = static_cast<std::size_t>(came) - kSmall;  // came with the words
        alive = receive(other, large_.data(), large_.size() - here) && send_all(other, "d", 1);
      } else if (some[0] == 'b') {
        alive = send_all(other, large_.data(), large_.size());
      } else {
        alive = send_all(other, some.data(), static_cast<std::size_t>(came));
      }
      if (!alive) break;
    }
    close(other);
  }

  std::string large_;  ///< the other end's
  int socket_;
  std::thread thread_;
};

// ---- Requests of RTRS ---------------------------------------------------------------------------

std::uint16_t port_of(const std::string& address) {
  return static_cast<std::uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str()));
}

/// The lane below the library: one request, to a handler that answers at once.
class Lane final : public Way, private rtrs::ServerHandler {
 public:
  Lane() {
    rtrs::ServerOptions server;
    server.listen = {{rtrs::TransportKind::tcp, "127.0.0.1", 0}};
    server.reactors = 1;
    server.features = rtrs::wire::kFeatureExactlyOnce;
    server_ = rtrs::Server::create(std::move(server), *this);
    if (!server_->start()) die("cannot listen");
    rtrs::ClientOptions client;
    client.session_name = "lane";
    client.paths = {
        {rtrs::TransportKind::tcp, "", "127.0.0.1", port_of(server_->addresses().front())}};
    client.features = rtrs::wire::kFeatureExactlyOnce;
    auto connected = rtrs::Client::connect(client, {});
    if (!connected) die(connected.error().text);
    client_ = std::move(*connected);
  }
  ~Lane() override {
    client_.reset();
    server_->stop(std::chrono::seconds{1});
  }
  void get(std::string& in) override {
    Once once;
    once.request.message = std::as_bytes(std::span{"get", 3});
    once.request.is_read = true;
    once.request.read_data = std::as_writable_bytes(std::span{in});
    once.request.context = &once;
    once.request.done = [](rtrs::ClientLane&, rtrs::Request& request) {
      static_cast<Once*>(request.context)->finish(request.error);
    };
    if (client_->run(once, {}) != 0) die("a request failed");
  }

 private:
  struct Once final : rtrs::Operation {
    using Operation::finish;
    rtrs::Request request;
    void start(rtrs::ClientLane& lane) override { lane.submit(request); }
    void cancel(rtrs::ClientLane& lane) override { lane.cancel(request); }
  };
  void* on_session_up(rtrs::ServerSession&) override { return nullptr; }
  void on_session_down(rtrs::ServerSession&) override {}
  void on_request(rtrs::ServerSession&, rtrs::ServerRequest& request) override {
    std::memset(request.data.data(), 'x', request.data.size());
    request.finish(0);
  }

  std::unique_ptr<rtrs::Server> server_;
  std::unique_ptr<rtrs::Client> client_;
};

/// The same by calls.
class Library final : public Way {
 public:
  /// The client of a server that is elsewhere.
  Library(const std::string& uri, bool registers, bool plain = false) : registers_{registers} {
    rtrs_client_options options{};
    options.size = sizeof(options);
    options.no_digests = plain ? 1 : 0;
    rtrs_error error{};
    client_ = rtrs_connect(uri.c_str(), &options, &error);
    if (client_ == nullptr) die(error.text);
  }
  ~Library() override { rtrs_disconnect(client_); }
  void know(std::string& memory) override {
    rtrs_error error{};
    if (!registers_) return;
    if (rtrs_register_memory(client_, memory.data(), memory.size(), &error) != 0) die(error.text);
  }
  void get(std::string& in) override { call("get", nullptr, &in); }
  void put(const std::string& out) override { call("put", &out, nullptr); }
  void get_back(std::string& in) override { call("back", nullptr, &in); }
  std::uint64_t get_many(Clock::time_point until) override {
    std::vector<Asker> askers(kDepth);
    for (Asker& asker : askers) asker.begin(client_, until);
    std::uint64_t all = 0;
    for (Asker& asker : askers) all += asker.end.get_future().get();
    return all;
  }

 private:
  /// Asks again as soon as it is answered.
  struct Asker {
    std::string in = std::string(kSmall, '\0');
    iovec room{};
    rtrs_operation operation{};
    rtrs_client* client = nullptr;
    Clock::time_point until;
    std::uint64_t count = 0;
    std::promise<std::uint64_t> end;

    void begin(rtrs_client* of, Clock::time_point time) {
      client = of;
      until = time;
      room = {in.data(), in.size()};
      operation.size = sizeof(operation);
      operation.message = "get";
      operation.message_length = 3;
      operation.in = &room;
      operation.in_count = 1;
      operation.context = this;
      operation.done = [](rtrs_operation* done) { static_cast<Asker*>(done->context)->on_done(); };
      if (rtrs_submit(client, &operation) != 0) die("cannot submit");
    }
    void on_done() {
      if (operation.error != 0) die(rtrs_strerror(operation.error));
      ++count;
      if (Clock::now() >= until) return end.set_value(count);
      if (rtrs_submit(client, &operation) != 0) die("cannot submit again");
    }
  };

  void call(std::string_view what, const std::string* out, std::string* in) {
    const iovec from{out != nullptr ? const_cast<char*>(out->data()) : nullptr,
                     out != nullptr ? out->size() : 0};
    const iovec to{in != nullptr ? in->data() : nullptr, in != nullptr ? in->size() : 0};
    std::size_t length = 0;
    const int failed = rtrs_call(client_, what.data(), what.size(), &from, out != nullptr ? 1 : 0,
                                 &to, in != nullptr ? 1 : 0, &length, 0);
    if (failed != 0 || length != to.iov_len) die(rtrs_strerror(failed));
  }

  rtrs_client* client_;
  bool registers_;
};

/// Their server.
class LibraryServer {
 public:
  LibraryServer(const char* uri, std::size_t large, bool plain = false) : large_(large, 'x') {
    rtrs_server_options options{};
    options.size = sizeof(options);
    options.no_digests = plain ? 1 : 0;
    options.request_memory = 2 * std::uint64_t{large};  // the machine may be small
    rtrs_server_ops ops{};
    ops.size = sizeof(ops);
    ops.request = [](void* self, const rtrs_incoming* incoming) {
      static_cast<LibraryServer*>(self)->handle(*incoming);
    };
    rtrs_error error{};
    server_ = rtrs_listen(uri, &ops, this, &options, &error);
    if (server_ == nullptr) die(error.text);
  }
  ~LibraryServer() { rtrs_server_close(server_, 1000); }
  LibraryServer(const LibraryServer&) = delete;
  LibraryServer& operator=(const LibraryServer&) = delete;
  unsigned port() const { return rtrs_server_port(server_); }

 private:
  void handle(const rtrs_incoming& incoming) {
    const std::string_view what{static_cast<const char*>(incoming.message),
                                incoming.message_length};
    if (what == "get") return rtrs_finish(incoming.request, 0, large_.data(), kSmall);
    if (what == "put") {
      rtrs_free(rtrs_take_data(incoming.request));
      return rtrs_finish(incoming.request, 0, nullptr, 0);
    }
    rtrs_finish_with(
        incoming.request, large_.data(), large_.size(), [](void*) {}, nullptr);
  }

  std::string large_;
  rtrs_server* server_;
};

/// Both in this process.
class LibraryPair final : public Way {
 public:
  LibraryPair(std::size_t large, bool plain)
      : server_{"rtrs+tcp://127.0.0.1:0", large, plain},
        client_{"rtrs+tcp://127.0.0.1:" + std::to_string(server_.port()), false, plain} {}
  void get(std::string& in) override { client_.get(in); }
  std::uint64_t get_many(Clock::time_point until) override { return client_.get_many(until); }
  void put(const std::string& out) override { client_.put(out); }
  void get_back(std::string& in) override { client_.get_back(in); }

 private:
  LibraryServer server_;
  Library client_;
};

// ---- Measuring ----------------------------------------------------------------------------------

std::unique_ptr<Way> make(std::string_view name, std::size_t large) {
  if (name == "bare") return std::make_unique<Bare>(large);
  if (name == "lane") return std::make_unique<Lane>();
  if (name == "librtrs" || name == "plain") {
    return std::make_unique<LibraryPair>(large, name == "plain");
  }
  if (name.find("://") != name.npos) return std::make_unique<Library>(std::string{name}, true);
  die("the ways are bare, lane, librtrs and plain");
}

void measure_one(Way& way, Clock::duration time) {
  std::string in(kSmall, '\0');
  std::vector<double> all;
  const auto warm = Clock::now() + time / 10;
  while (Clock::now() < warm) way.get(in);
  const auto begin = Clock::now();
  for (auto now = begin; now < begin + time;) {
    way.get(in);
    const auto then = std::exchange(now, Clock::now());
    all.push_back(1e6 * seconds(now - then));
  }
  const double took = seconds(Clock::now() - begin);
  std::ranges::sort(all);
  const double count = static_cast<double>(all.size());
  std::printf("{\"p50_us\":%.3f,\"p99_us\":%.3f,\"per_s\":%.1f}\n", all[all.size() / 2],
              all[all.size() * 99 / 100], count / took);
}

void measure_many(Way& way, Clock::duration time) {
  way.get_many(Clock::now() + time / 10);
  const auto begin = Clock::now();
  const auto count = static_cast<double>(way.get_many(begin + time));
  std::printf("{\"per_s\":%.1f}\n", count / seconds(Clock::now() - begin));
}

/// CPU time, in seconds.
double cpu_of(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto sum = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return sum(usage.ru_utime) + sum(usage.ru_stime);
}

/// The first time memory is touched counts for nobody. CPU time, per GB, is that of the calling
/// thread and that of all others, which are the server's where it is in this process. On a machine
/// with other work it says more than the time that passed.
template <class Move>
void measure_large(Way& way, std::size_t large, Clock::duration time, Move move) {
  std::string data(large, 'y');
  way.know(data);
  move(data);
  double moved = 0;
  const double all = cpu_of(RUSAGE_SELF), own = cpu_of(RUSAGE_THREAD);
  const auto begin = Clock::now();
  do {
    move(data);
    moved += static_cast<double>(large);
  } while (Clock::now() < begin + time);
  const double took = seconds(Clock::now() - begin);
  const double client = cpu_of(RUSAGE_THREAD) - own;
  const double server = cpu_of(RUSAGE_SELF) - all - client;
  std::printf("{\"mb_per_s\":%.1f,\"client_cpu_ms_per_gb\":%.0f,\"server_cpu_ms_per_gb\":%.0f}\n",
              1e-6 * moved / took, 1e12 * client / moved, 1e12 * server / moved);
}

int serve(const char* uri, std::size_t large) {
  sigset_t stop;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &stop, nullptr);
  const LibraryServer server{uri, large};
  std::printf("listening on port %u\n", server.port());
  std::fflush(stdout);
  int signal = 0;
  return sigwait(&stop, &signal);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 4 && std::string_view{argv[1]} == "serve") {
    return serve(argv[2], static_cast<std::size_t>(std::atoi(argv[3])) << 20);
  }
  if (argc != 5) die("usage: bench-library WAY CASE SECONDS MIB");
  const std::string_view what = argv[2];
  const auto time = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(std::atof(argv[3])));
  const std::size_t large = static_cast<std::size_t>(std::atoi(argv[4])) << 20;
  const auto way = make(argv[1], large);
  if (what == "get-1") {
    measure_one(*way, time);
  } else if (what == "get-32") {
    measure_many(*way, time);
  } else if (what == "put") {
    measure_large(*way, large, time, [&](const std::string& data) { way->put(data); });
  } else if (what == "get") {
    measure_large(*way, large, time, [&](std::string& data) { way->get_back(data); });
  } else {
    die("the cases are get-1, get-32, put and get");
  }
}
