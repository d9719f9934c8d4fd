// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/server/path_host.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <utility>

#include "rdma/log_about.hpp"
#include "rdma/transport/clock.hpp"
#include "rdma/transport/sure.hpp"
#include "rdma/wire/probe.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;

/// Far longer than a client needs to end a memory registration, far shorter than anybody minds.
constexpr auto kErrorDelay = std::chrono::milliseconds{10};

/// Bytes that a path leaves to the heap of those who are there. Where the address space is limited,
/// or memory that nobody uses yet counts, the chunks would take all.
constexpr std::size_t kReservedMemory = 8 << 20;

std::uintptr_t page_size() {
  static const auto size = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  return size;
}

std::size_t whole_pages(std::size_t size) {
  return (size + page_size() - 1) / page_size() * page_size();
}

/// Whole pages. False: memory that somebody has locked stays.
bool discard_pages(MutableBytes part) {
  const std::uintptr_t page = page_size();
  const auto begin = reinterpret_cast<std::uintptr_t>(part.data());
  const std::uintptr_t first = (begin + page - 1) / page * page;
  const std::uintptr_t end = (begin + part.size()) / page * page;
  if (first >= end) return true;
  return madvise(part.data() + (first - begin), end - first, MADV_DONTNEED) == 0;
}

/// The sentence for the log, and how important it is.
std::pair<LogLevel, std::string> describe(const PathEnd& end) {
  using Kind = PathEnd::Kind;
  switch (end.kind) {
    case Kind::makes_room:
      return {LogLevel::info, "others came while it had not finished its handshake"};
    case Kind::spared:
      return {LogLevel::warning,
              "memory is short, and a session that needs a path gets that of this one, whose "
              "session can do without it"};
    case Kind::replaced:
      return {LogLevel::info, "the client has connected the path again"};
    case Kind::late:
      return {LogLevel::warning, "the handshake was not finished in time"};
    case Kind::silent:
      return {LogLevel::warning, "the client does not answer heartbeats"};
    case Kind::fenced:
      return {LogLevel::info, end.why};
    case Kind::broke_rule:
    case Kind::turned_down:
      return {LogLevel::warning, end.why};
    case Kind::unproven:
      return {LogLevel::debug, end.why};
    case Kind::drained:
      return {LogLevel::info, "the server stops"};
    case Kind::left:
      return {LogLevel::info, end.text};
    case Kind::broken:
    case Kind::command:
      return {LogLevel::warning, end.text};
    case Kind::failed:
      return {LogLevel::error, end.text};
  }
  return {LogLevel::error, end.text};
}

}  // namespace

PathHost::Link::Link(PathHost& owner, std::unique_ptr<Connection> c)
    : host{owner},
      connection{std::move(c)},
      readiness{owner.reactor_.io(), owner.reactor_.hang_ups(), connection->descriptor(), *this} {
  connection->set_wakeup(
      [](void* context) {
        auto& self = *static_cast<Link*>(context);
        self.host.reactor_.defer(self);
      },
      this);
}

void PathHost::Link::run_deferred() {
  if (!host.open() || host.reactor_.plays(*this)) return;
  const bool draining = host.machine_.draining();
  connection->flush();
  if (!connection->failure().empty()) {
    // The reading side finds it and closes; but nobody reads any more while the server stops.
    if (draining) {
      host.report(ServerEvent::Kind::end_path,
                  {.kind = PathEnd::Kind::left, .text = connection->failure()});
    }
    return;
  }
  if (connection->wants_to_write()) readiness.wait_to_write();
  if (host.path_.minds_memory()) host.wake();
  if (draining) host.send_rest();
}

void PathHost::Link::on_readable() {
  if (host.open()) host.progress(*this);
}

void PathHost::Link::on_writable() {
  if (host.open()) run_deferred();
}

bool PathHost::Link::play_on(OneCall* call) {
  if (!host.open() || host.machine_.draining() || host.path_.unanswered() != 0) return false;
  if (host.path_.minds_memory()) return false;
  if (readiness.hung_up() || !connection->begin_await(call, false)) return false;
  const bool came = connection->await();
  connection->end_await();
  if (came) host.progress(*this);
  return came;
}

void PathHost::Link::play_out() { run_deferred(); }

PathHost::PathHost(SessionEnvironment& server, Admission::SessionId session, PathHostOwner& owner,
                   ServerMachine& machine, ServerMachine::Path& place, std::string peer)
    : server_{server},
      number_{session, place.id},
      owner_{owner},
      reactor_{*machine.session().reactor},
      machine_{machine},
      place_{place},
      path_{place.core},
      session_{machine.session()},
      peer_{std::move(peer)},
      links_(path_.options().cid_count),
      delay_timer_{reactor_.io()},
      memory_timer_{reactor_.io()} {
  place_.executor = this;
}

PathHost::~PathHost() {
  if (!memory_.empty()) munmap(memory_.data(), memory_.size());
}

void PathHost::log(LogLevel level, const char* event, const std::string& text) const {
  tell_if_possible([&] {
    const std::string name = session_.name.empty() ? "" : " '" + session_.name + "'";
    const LogAbout about{{.event = event, .session = session_.name, .path = peer_}};
    owner_.log_of_path(level, "session" + name + " from " + peer_ + ": " + text);
  });
}

void PathHost::report(ServerEvent::Kind kind, PathEnd end) const {
  owner_.report({.kind = kind, .path = place_.id, .end = std::move(end)});
}

bool PathHost::provide_chunks() {
  const std::size_t size = session_.options().chunk_memory();
  const std::size_t mapped = whole_pages(size);
  void* memory = mmap(nullptr, mapped + kReservedMemory, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    log(LogLevel::error, "path_lacks_memory",
        std::string{"cannot map chunk memory: "} + std::strerror(errno));
    return false;
  }
  memory_ = {static_cast<std::byte*>(memory), size};
  munmap(memory_.data() + mapped, kReservedMemory);
  // A page of 2 MiB would be real as soon as one byte of it is used.
  if (path_.loan().limited()) madvise(memory_.data(), mapped, MADV_NOHUGEPAGE);
  path_.set_chunks(memory_);
  for (const auto& link : links_) {
    if (auto known = link->connection->register_memory(memory_); !known) {
      log(LogLevel::error, "path_lacks_memory", known.error().text);
      return false;
    }
  }
  return true;
}

/// The connections are closed, so that no device has the memory registered.
void PathHost::give_back(std::span<const MutableBytes> unused, std::uint64_t held) {
  const bool discarded = std::ranges::all_of(unused, discard_pages);
  server_.on_path_shrunk(number_, discarded ? held : memory_.size());
}

// ---- Memory that is short -----------------------------------------------------------------------

/// Locked memory stays, but whoever locks all of a process has told the system that it is there.
void PathHost::discard(std::span<const MutableBytes> parts) {
  for (const MutableBytes part : parts) discard_pages(part);
}

void PathHost::await_memory() {
  server_.on_starved();
  if (!std::exchange(shows_life_, true)) show_life_later();
}

void PathHost::show_life_later() {
  memory_timer_.expires_after(path_.sign_interval());
  memory_timer_.async_wait([this](boost::system::error_code cancelled) {
    if (!cancelled) show_life();
  });
}

void PathHost::show_life() {
  shows_life_ = open() && path_.starves();
  if (!shows_life_) return;
  path_.show_life();
  for (const auto& link : links_) {
    if (open() && link && link->starves) end_if_left(*link);
  }
  show_life_later();
}

/// A client that has left does not read the answers to what it has sent.
void PathHost::end_if_left(Link& link) {
  if (!link.readiness.hung_up()) return;
  report(ServerEvent::Kind::ended,
         {.kind = PathEnd::Kind::left, .cid = cid_of(link), .text = "closed by the client"});
}

/// Any thread.
void PathHost::wake() {
  if (woken_.exchange(true)) return;
  post_surely(reactor_.io(), [this] {
    woken_ = false;
    go_on();
  });
}

void PathHost::go_on() {
  if (open()) path_.on_memory();
  for (std::uint16_t cid = 0; cid < links_.size(); ++cid) {
    Link* const link = links_[cid].get();
    if (open() && link != nullptr && link->starves && !path_.starves(cid)) progress(*link);
  }
}

// ---- Connections --------------------------------------------------------------------------------

void PathHost::add(std::uint16_t cid, std::unique_ptr<Incoming> incoming) {
  try {
    open(cid, *incoming);
  } catch (const std::exception& lack) {
    if (!links_[cid]) server_.on_connection_closed();
    fail(lack);
  }
}

/// The path lacks something of this server, and its client may come again.
void PathHost::fail(const std::exception& lack) {
  PathEnd end{.kind = PathEnd::Kind::failed};
  tell_if_possible(
      [&] { end.text = std::string{"this server lacks what a path takes: "} + lack.what(); });
  surely([&] { report(ServerEvent::Kind::end_path, end); });
}

void PathHost::open(std::uint16_t cid, Incoming& incoming) {
  auto connection = incoming.open(path_.queue_sizes(), context_);
  tl::expected<void, Failure> ready;
  if (!connection) {
    ready = tl::unexpected(connection.error());
  } else if (path_.options().new_keys) {
    ready = (*connection)->reserve_keys(session_.options().queue_depth);
  }
  if (connection && path_.is_memory()) path_.set_regions(context_->regions());
  if (!ready) {
    server_.on_connection_closed();
    incoming.reject(wire::encode_reject(ready.error().error));
    return surely([&] {
      report(ServerEvent::Kind::end_path,
             {.kind = PathEnd::Kind::failed, .text = ready.error().text});
    });
  }
  links_[cid] = std::make_unique<Link>(*this, std::move(*connection));
  Link& link = *links_[cid];
  link.handler =
      &path_.add(cid, *link.connection, wire::copy_of<wire::ConnectRequest>(incoming.record));
  if (const auto in = incoming.accept(wire::encode(path_.accept_parameters())); !in) {
    // A client that leaves, perhaps a port scan, is nobody's fault.
    const bool left = in.error().error == ECONNRESET;
    return report(
        ServerEvent::Kind::end_path,
        {.kind = left ? PathEnd::Kind::left : PathEnd::Kind::broken, .text = in.error().text});
  }
  link.readiness.wait_to_read();
}

void PathHost::delay_answer(ServerRequest& request, int error) {
  delayed_.push_back({now() + kErrorDelay, &request, error});
  if (delayed_.size() == 1) answer_delayed();
}

void PathHost::answer_delayed() {
  while (!delayed_.empty() && (!open() || delayed_.front().due <= now())) {
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

/// Up to the first that has more than a turn's worth: that one goes on by itself.
bool PathHost::read() {
  return std::ranges::all_of(links_, [this](const auto& link) {
    return !open() || !link ||
           take_arrivals(*link, &Connection::glance) != Connection::Status::more;
  });
}

/// A descriptor tells once of an arrival and of an end that come together.
void PathHost::look() {
  for (const auto& link : links_) {
    if (link && open()) progress(*link);
  }
}

void PathHost::progress(Link& link) { take_arrivals(link, &Connection::progress); }

Connection::Status PathHost::take_arrivals(Link& link, Look how) {
  using Status = Connection::Status;
  if (machine_.draining()) return Status::drained;
  machine_.begin_reading(place_);
  const auto begun = path_.requests();
  Status status = Status::drained;
  try {
    status = (link.connection.get()->*how)(*link.handler);
    if (!machine_.end_reading(place_, status == Status::more)) return Status::drained;
  } catch (const std::exception& lack) {
    if (path_.requests() != begun) throw;  // the last one would perhaps never end
    fail(lack);
    return Status::drained;
  }
  // Answers given at once leave now, as one batch; waiting for more would cost another look at the
  // events.
  reactor_.forget(link);
  link.run_deferred();
  if (!open()) return Status::drained;
  follow_up(link, status);
  return status;
}

void PathHost::follow_up(Link& link, Connection::Status status) {
  using Status = Connection::Status;
  link.starves = status == Status::starves;
  switch (status) {
    case Status::starves:
      return;  // go_on() reads it
    case Status::drained:
      if (link.readiness.hung_up()) return progress_later(link);
      if (path_.unanswered() == 0) reactor_.solo(link);
      return link.readiness.wait_to_read();
    case Status::more:
      return progress_later(link);
    case Status::closed:
      return surely([&] {
        report(ServerEvent::Kind::ended,
               {.kind = PathEnd::Kind::left, .cid = cid_of(link), .text = "closed by the client"});
      });
    default:
      return surely([&] {
        report(ServerEvent::Kind::ended, {.kind = PathEnd::Kind::broken,
                                          .cid = cid_of(link),
                                          .text = link.connection->failure()});
      });
  }
}

void PathHost::serves() {
  tell_if_possible([&] {
    log(LogLevel::info, "path_up",
        "connected with " + std::to_string(links_.size()) +
            (links_.size() == 1 ? " connection" : " connections") +
            (session_.identity.how == Identity::How::none ? "" : ", " + security()));
  });
  RTRS_PROBE(rtrs, path_state, session_.name.c_str(), peer_.c_str(), "up");
  report(ServerEvent::Kind::serving);
}

void PathHost::report_auth_refused(const std::string& why, std::uint16_t cid) const {
  const bool proves = path_.proofs().needed();
  const Identity user = identity() != nullptr ? *identity() : Identity{};
  server_.on_auth_refused(
      {.peer = peer_,
       .user = proves ? std::string{path_.proofs().at(cid).claimed()} : user.name,
       .how = to_string(proves ? Identity::How::proof : user.how),
       .why = why},
      path_.options().entrance);
}

std::uint16_t PathHost::cid_of(const Link& link) const {
  const auto place =
      std::ranges::find(links_, &link, [](const auto& one) { return one.get(); }) - links_.begin();
  return static_cast<std::uint16_t>(place);
}

std::optional<std::string_view> PathHost::user() const {
  if (!path_.proofs().needed()) return std::nullopt;
  return path_.proofs().at(0).user().name;
}

/// Other connections get their turn first.
void PathHost::progress_later(Link& link) {
  if (std::exchange(link.again, true)) return;
  asio::post(reactor_.io(), [this, &link] {
    link.again = false;
    if (open()) progress(link);
  });
}

ServerSessionStatus::Path PathHost::status() const {
  ServerSessionStatus::Path status{.peer = peer_,
                                   .listener = path_.options().entrance,
                                   .connected = path_.state() == ServerPathState::connected,
                                   .access = path_.notices().access(),
                                   .access_known = path_.notices().access_known(),
                                   .requests = path_.unanswered(),
                                   .begun = path_.requests(),
                                   .security = security(),
                                   .identities = identities()};
  for (const auto& link : links_) status.connections += link ? 1U : 0U;
  return status;
}

const Identity* PathHost::identity(std::uint16_t cid) const {
  if (path_.proofs().needed())
    return path_.proofs().at(cid).proven() ? &path_.proofs().at(cid).user() : nullptr;
  return links_[cid] ? links_[cid]->connection->peer() : nullptr;
}

std::vector<Identity> PathHost::identities() const {
  std::vector<Identity> all;
  for (std::uint16_t cid = 0; cid < links_.size(); ++cid) {
    const Identity* const one = identity(cid);
    if (one == nullptr || std::ranges::count(all, one->key, &Identity::key) != 0) continue;
    all.push_back(*one);
  }
  return all;
}

std::string PathHost::security() const {
  const Identity* const peer = identity();
  return describe(peer != nullptr ? *peer : Identity{});
}

void PathHost::send_rest() {
  for (const auto& link : links_) {
    if (link && link->connection->wants_to_write()) return;  // run_deferred() asks again
  }
  report(ServerEvent::Kind::flushed);
}

/// Nobody else is served meanwhile, and a dead peer needs all the time there is. So a path gets
/// little time, and all paths of the reactor together not so much that others are not drained in
/// time.
void PathHost::finish() {
  constexpr Duration kLongest = std::chrono::milliseconds{100};
  const Instant began = now();
  const Instant until = began + std::min(kLongest, reactor_.time_to_finish());
  for (const auto& link : links_) {
    if (link) link->connection->finish(until);
  }
  reactor_.take_time_to_finish(now() - began);
}

void PathHost::leaves(const PathEnd& end, bool over) {
  if (end.answered) finish();
  tell_if_possible([&] {
    const auto [level, why] = describe(end);
    if (end.kind == PathEnd::Kind::unproven) report_auth_refused(why, end.cid);
    log(level, "path_closed", why);
  });
  RTRS_PROBE(rtrs, path_state, session_.name.c_str(), peer_.c_str(), "closed");
  server_.on_path_closing(number_, over);
}

void PathHost::close() {
  for (auto& link : links_) {
    if (!link) continue;
    reactor_.forget(*link);
    link->readiness.close();
  }
  Regions* const regions = context_ ? context_->regions() : nullptr;
  if (!path_.is_memory() || regions == nullptr) return release();
  // First the keys: what lies behind them may be of use to others at once.
  regions->retire_all([this, &io = reactor_.io()] { post_surely(io, [this] { release(); }); });
}

void PathHost::release() {
  context_.reset();  // the last connection takes the path's domain with it
  for (std::size_t cid = 0; cid < links_.size(); ++cid) {
    auto& link = links_[cid];
    if (!link) continue;
    tell_if_possible([&] {
      const std::string moved = link->connection->statistics();
      if (moved.empty()) return;
      log(LogLevel::debug, "connection_closed", "connection " + std::to_string(cid) + ": " + moved);
    });
    link->connection->close();
    server_.on_connection_closed();
  }
  delay_timer_.cancel();
  memory_timer_.cancel();
  answer_delayed();
  report(ServerEvent::Kind::released);
}

}  // namespace rtrs
