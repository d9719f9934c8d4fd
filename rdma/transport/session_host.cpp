#include "rdma/transport/session_host.hpp"

#include <sys/mman.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

namespace rtrs {
namespace {

namespace asio = boost::asio;
using Descriptor = asio::posix::stream_descriptor;

/// Far longer than a client needs to end a memory registration, far shorter than anybody minds.
constexpr auto kErrorDelay = std::chrono::milliseconds{10};

Instant now() { return Instant{std::chrono::steady_clock::now().time_since_epoch()}; }

}  // namespace

SessionHost::Link::Link(SessionHost& owner, std::unique_ptr<Connection> c)
    : host{owner},
      connection{std::move(c)},
      descriptor{owner.reactor_.io(), connection->descriptor()} {
  connection->set_wakeup(
      [](void* context) {
        auto& self = *static_cast<Link*>(context);
        self.host.reactor_.defer(self);
      },
      this);
}

void SessionHost::Link::run_deferred() {
  if (host.closed_) return;
  connection->flush();
  if (!connection->failure().empty()) {
    // The reading side finds it and closes; but nobody reads any more while the server stops.
    if (host.draining_) host.close(connection->failure(), LogLevel::info);
    return;
  }
  if (connection->wants_to_write()) host.wait_to_write(*this);
  if (host.draining_) host.check_drained();
}

SessionHost::SessionHost(Reactor& reactor, ServerSessionOptions options, ServerHandler& handler,
                         std::uint16_t cid_count, std::string peer, SessionEnvironment environment)
    : reactor_{reactor},
      options_{options},
      environment_{std::move(environment)},
      session_{options, handler},
      links_(cid_count),
      delay_timer_{reactor.io()},
      timer_{reactor.io()} {
  session_.reactor = &reactor;
  session_.peer = std::move(peer);
  session_.open_path(cid_count);
  session_.path().claim_name = environment_.claim_name;
  session_.path().provide_chunks = [this] { return provide_chunks(); };
  session_.delay_answer = [this](ServerRequest& request, int error) {
    delay_answer(request, error);
  };
  session_.on_gone([this] { environment_.on_gone(); });
}

SessionHost::~SessionHost() {
  const MutableBytes chunks = session_.chunks();
  if (!chunks.empty()) munmap(chunks.data(), chunks.size());
}

void SessionHost::log(LogLevel level, const std::string& text) const {
  if (!environment_.log) return;
  const std::string name = session_.name.empty() ? "" : " '" + session_.name + "'";
  environment_.log(level, "session" + name + " from " + session_.peer + ": " + text);
}

bool SessionHost::provide_chunks() {
  // Untouched pages cost nothing, and arrive zeroed.
  const std::size_t size = options_.chunk_memory();
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    log(LogLevel::error, std::string{"cannot map chunk memory: "} + std::strerror(errno));
    return false;
  }
  session_.set_chunks({static_cast<std::byte*>(memory), size});
  for (const auto& link : links_) {
    if (auto known = link->connection->register_memory(session_.chunks()); !known) {
      log(LogLevel::error, known.error().text);
      return false;
    }
  }
  return true;
}

void SessionHost::add(std::uint16_t cid, std::unique_ptr<Incoming> incoming) {
  if (closed_ || draining_) {
    environment_.on_connection_closed();
    return;  // the client sees its connection closed and tries again
  }
  if (!started_) start_timers();
  auto connection = incoming->open(session_.path().queue_sizes(), context_);
  tl::expected<void, Failure> ready;
  if (!connection) {
    ready = tl::unexpected(connection.error());
  } else if (options_.new_keys) {
    ready = (*connection)->reserve_keys(options_.queue_depth);
  }
  if (!ready) {
    environment_.on_connection_closed();
    incoming->reject(wire::encode_reject(ready.error().error));
    return close(ready.error().text, LogLevel::error);
  }
  links_[cid] = std::make_unique<Link>(*this, std::move(*connection));
  Link& link = *links_[cid];
  link.handler = &session_.path().add(cid, *link.connection);
  if (!incoming->accept(wire::encode(options_.accept_parameters()))) {
    return close("a connection broke while it was accepted", LogLevel::info);
  }
  wait_to_read(link);
}

void SessionHost::delay_answer(ServerRequest& request, int error) {
  delayed_.push_back({now() + kErrorDelay, &request, error});
  if (delayed_.size() == 1) answer_delayed();
}

void SessionHost::answer_delayed() {
  while (!delayed_.empty() && (closed_ || delayed_.front().due <= now())) {
    const Delayed next = delayed_.front();
    delayed_.pop_front();
    session_.answer(*next.request, next.error);
  }
  if (delayed_.empty()) return;
  delay_timer_.expires_after(delayed_.front().due - now());
  delay_timer_.async_wait([this](boost::system::error_code cancelled) {
    if (!cancelled) answer_delayed();
  });
}

void SessionHost::start_timers() {
  started_ = true;
  timer_.expires_after(environment_.handshake_timeout);
  timer_.async_wait([this](boost::system::error_code cancelled) {
    if (cancelled || closed_) return;
    if (session_.path().state() == ServerPathState::connecting) {
      close("the handshake was not finished in time", LogLevel::warning);
    }
  });
}

void SessionHost::wait_to_read(Link& link) {
  link.descriptor.async_wait(Descriptor::wait_read, [this, &link](boost::system::error_code error) {
    if (!error && !closed_) progress(link);
  });
}

void SessionHost::wait_to_write(Link& link) {
  if (std::exchange(link.writing, true)) return;
  link.descriptor.async_wait(Descriptor::wait_write,
                             [this, &link](boost::system::error_code error) {
                               link.writing = false;
                               if (!error && !closed_) link.run_deferred();
                             });
}

void SessionHost::progress(Link& link) {
  using Status = Connection::Status;
  if (draining_) return;
  const bool was_connecting = session_.path().state() == ServerPathState::connecting;
  const Status status = link.connection->progress(*link.handler);
  // What was answered at once leaves now, as one batch; waiting for more would cost another look at
  // the events.
  reactor_.forget(link);
  link.run_deferred();
  if (closed_) return;
  if (was_connecting && session_.path().state() == ServerPathState::connected) {
    log(LogLevel::info, "connected with " + std::to_string(links_.size()) + " connections");
    session_.path().start_heartbeat(now());
    schedule_tick();
  }
  switch (status) {
    case Status::drained:
      return wait_to_read(link);
    case Status::more:
      // Others first, then on.
      asio::post(reactor_.io(), [this, &link] {
        if (!closed_) progress(link);
      });
      return;
    case Status::closed:
      return close("closed by the client", LogLevel::info);
    case Status::broken:
      return close(link.connection->failure(), LogLevel::warning);
  }
}

void SessionHost::schedule_tick() {
  timer_.expires_after(options_.heartbeat_interval);
  timer_.async_wait([this](boost::system::error_code cancelled) {
    if (cancelled || closed_) return;
    if (session_.path().on_tick(now()) == Heartbeat::Verdict::dead) {
      return close("the client does not answer heartbeats", LogLevel::warning);
    }
    schedule_tick();
  });
}

void SessionHost::drain() {
  draining_ = true;
  check_drained();
}

void SessionHost::check_drained() {
  if (closed_ || session_.executing() != 0) return;
  for (const auto& link : links_) {
    if (link && link->connection->wants_to_write()) return;
  }
  close("the server stops", LogLevel::info);
}

void SessionHost::close(const std::string& why, LogLevel level) {
  if (std::exchange(closed_, true)) return;
  log(level, why);
  environment_.on_closing();
  timer_.cancel();
  session_.path().close();
  context_.reset();  // the last connection takes the path's domain with it
  for (std::size_t cid = 0; cid < links_.size(); ++cid) {
    auto& link = links_[cid];
    if (!link) continue;
    if (const std::string moved = link->connection->statistics(); !moved.empty()) {
      log(LogLevel::debug, "connection " + std::to_string(cid) + ": " + moved);
    }
    reactor_.forget(*link);
    link->descriptor.release();
    link->connection->close();
    environment_.on_connection_closed();
  }
  delay_timer_.cancel();
  answer_delayed();
  session_.on_path_closed();
}

}  // namespace rtrs
