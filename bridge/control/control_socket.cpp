// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/control/control_socket.hpp"

#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <cerrno>
#include <chrono>
#include <exception>
#include <list>
#include <thread>
#include <utility>

#include "bridge/control/commands.hpp"
#include "bridge/control/unix_socket.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {
namespace {

namespace asio = boost::asio;
using asio::awaitable;
using asio::experimental::awaitable_operators::operator||;
using Socket = asio::local::stream_protocol::socket;

constexpr auto kAwait = asio::as_tuple(asio::use_awaitable);
/// For people at a keyboard.
constexpr std::chrono::seconds kTimeForLine{60};
constexpr std::chrono::seconds kTimeToReadAnswer{5};
/// A program sends its line at once after connecting; this is for a very busy machine.
constexpr std::chrono::seconds kTimeToIntroduce{2};
/// When no descriptor is left.
constexpr std::chrono::milliseconds kPause{250};

/// Members of this group may look.
constexpr std::string_view kReaders = "rnbd";

/// The group that may look, if the program runs in it, as rnbd-server.service does. Other sockets
/// are for their owner only. Programs of root do not look up the group, because its file may be on
/// a hanging disk.
void admit_readers(const std::string& path) {
  const rtrs::OwnedFd socket{::open(path.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC)};
  struct stat now {};
  if (!socket || ::fstat(socket.get(), &now) != 0) return;
  if (!S_ISSOCK(now.st_mode) || now.st_uid != ::geteuid() || now.st_gid == 0) return;
  const group* const owner = ::getgrgid(now.st_gid);
  if (owner == nullptr || kReaders != owner->gr_name) return;
  ::chmod(("/proc/self/fd/" + std::to_string(socket.get())).c_str(), 0660);
}

/// The permissions of the socket keep all other users out.
ControlCaller caller_of(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  const bool known = ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  const bool owns = known && (peer.uid == 0 || peer.uid == ::geteuid());
  return owns ? ControlCaller::owner : ControlCaller::reader;
}

}  // namespace

class ControlSocket::Server {
 public:
  Server(int fd, Handler handler)
      : handler_{std::move(handler)}, acceptor_{io_, asio::local::stream_protocol{}, fd} {
    asio::co_spawn(io_, accept(), asio::detached);
    thread_ = std::thread{[this] {
      pthread_setname_np(pthread_self(), "rnbd-control");
      io_.run();
    }};
  }
  ~Server() {
    io_.stop();
    thread_.join();
  }

 private:
  awaitable<void> accept() {
    asio::steady_timer pause{io_};
    for (;;) {
      auto [error, socket] = co_await acceptor_.async_accept(kAwait);
      if (error) {
        pause.expires_after(kPause);
        co_await pause.async_wait(kAwait);
      } else {
        asio::co_spawn(io_, converse(std::move(socket)), asio::detached);
      }
    }
  }

  struct Program {
    explicit Program(Socket s) : socket{std::move(s)}, caller{caller_of(socket.native_handle())} {}
    Socket socket;
    ControlCaller caller;
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    bool introduced = false;  ///< it has sent a line
  };

  /// Drops the oldest silent client, or, to make room for an owner, the oldest reader.
  void make_room(ControlCaller caller) {
    const auto silent = [](const Program* program) {
      const auto age = std::chrono::steady_clock::now() - program->since;
      return !program->introduced && program->socket.is_open() && age >= kTimeToIntroduce;
    };
    const auto reader = [](const Program* program) {
      return program->caller == ControlCaller::reader;
    };
    auto goes = std::ranges::find_if(programs_, silent);
    if (goes == programs_.end() && caller == ControlCaller::owner) {
      goes = std::ranges::find_if(programs_, reader);
    }
    if (goes == programs_.end()) return;
    boost::system::error_code ignored;
    (*goes)->socket.close(ignored);
    programs_.erase(goes);
  }

  awaitable<void> converse(Socket accepted) {
    Program self{std::move(accepted)};
    Socket& socket = self.socket;
    if (programs_.size() >= kMaxConnections) make_room(self.caller);
    if (programs_.size() >= kMaxConnections) {
      co_await tell(socket, error_answer(EBUSY, "too many programs are connected here; try later"));
      co_return;
    }
    struct Place {
      std::list<Program*>& programs;
      Program& program;
      ~Place() { programs.remove(&program); }
    } const place{programs_, self};
    programs_.push_back(&self);
    std::string input;
    for (;;) {
      asio::steady_timer limit{io_, kTimeForLine};
      const auto read = co_await (
          asio::async_read_until(socket, asio::dynamic_buffer(input, kMaxLine), '\n', kAwait) ||
          limit.async_wait(kAwait));
      if (read.index() != 0) co_return;
      const auto [error, size] = std::get<0>(read);
      if (error == asio::error::not_found) {
        co_await tell(socket,
                      error_answer(EMSGSIZE, "the line is too long; at most " +
                                                 std::to_string(kMaxLine) + " bytes are possible"));
        co_return;
      }
      if (error) co_return;
      self.introduced = true;
      std::string_view line = std::string_view{input}.substr(0, size - 1);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!co_await tell(socket, answer(line, self.caller))) co_return;
      input.erase(0, size);
    }
  }

  std::string answer(std::string_view line, ControlCaller caller) {
    try {
      return handler_(line, caller);
    } catch (const std::exception& error) {
      return error_answer(EIO, std::string{"unexpected: "} + error.what());
    }
  }

  /// False: it does not read.
  awaitable<bool> tell(Socket& socket, std::string line) {
    line += '\n';
    asio::steady_timer limit{io_, kTimeToReadAnswer};
    const auto written = co_await (asio::async_write(socket, asio::buffer(line), kAwait) ||
                                   limit.async_wait(kAwait));
    co_return written.index() == 0 && !std::get<0>(std::get<0>(written));
  }

  std::list<Program*>
      programs_;  ///< declared before the loop, whose end ends the remaining connections
  Handler handler_;
  asio::io_context io_{1};
  asio::local::stream_protocol::acceptor acceptor_;
  std::thread thread_;
};

tl::expected<std::unique_ptr<ControlSocket>, std::string> ControlSocket::open(
    const std::string& path, Handler handler) {
  const auto fd = listen_on_unix_socket(path, 0600);
  if (!fd) return tl::unexpected("control socket " + path + ": " + fd.error());
  admit_readers(path);
  return std::unique_ptr<ControlSocket>{new ControlSocket{path, *fd, std::move(handler)}};
}

ControlSocket::ControlSocket(const std::string& path, int fd, Handler handler)
    : path_{path}, server_{std::make_unique<Server>(fd, std::move(handler))} {}

ControlSocket::~ControlSocket() {
  ::unlink(path_.c_str());
  server_.reset();
}

}  // namespace rnbd
