// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/nbd_connection.hpp"

#include <fcntl.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

namespace rnbd {

namespace {

/// Replies handled before other events get their turn.
constexpr unsigned kMaxBatch = 64;

/// A question about extents goes on behind its first answer while it has so few of them. The other
/// server may have to look for each.
constexpr std::uint32_t kFewExtents = 4;

/// Clients get the errors of the NBD protocol. All other errors are about the connection.
int portable_errno(int error) {
  switch (error) {
    case EPERM:
    case ENOMEM:
    case EINVAL:
    case ENOSPC:
    case EOVERFLOW:
    case EOPNOTSUPP:
      return error;
    default:
      return EIO;
  }
}

/// A server that fails a flush with one of these has lost data. With the others it refuses, and
/// ENOTCONN is libnbd's word for a connection that is over.
bool tells_of_loss(int error) { return error == EIO || error == ENOSPC || error == ENOMEM; }

/// The server may alter the storage for it. A flush behind a change alters nothing any more.
bool may_alter(const NbdIo& io) {
  return io.stage != NbdIo::Stage::flush && is_change(io.request->operation);
}

std::uint64_t inside(const BackendRequest& request, std::uint64_t size) {
  return request.offset >= size ? 0 : std::min(request.length, size - request.offset);
}

/// Bytes; 0 when it tells none that can be.
std::uint64_t told_by(nbd_handle* h) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(nbd_get_size(h), 0));
}

bool is_over(int error) { return error == ENOTCONN; }

bool can_send(nbd_handle* h) { return nbd_aio_is_ready(h) == 1 || nbd_aio_is_processing(h) == 1; }

bool has_ended(nbd_handle* h) { return nbd_aio_is_dead(h) == 1 || nbd_aio_is_closed(h) == 1; }

}  // namespace

bool is_change(BackendOperation operation) {
  return operation == BackendOperation::write || operation == BackendOperation::discard ||
         operation == BackendOperation::write_zeroes;
}

NbdConnection::NbdConnection(std::shared_ptr<NbdShared> shared, rtrs::Reactor& home)
    : shared_{std::move(shared)},
      size_{shared_->size},
      home_{home},
      descriptor_{home.io()},
      stall_timer_{home.io()} {}

NbdConnection::~NbdConnection() { home_.forget(*this); }

void NbdConnection::start(NbdIo& io) {
  io.connection = this;
  if (io.origin == &home_) return accept(io);
  boost::asio::post(home_.io(), [this, &io] { accept(io); });
}

void NbdConnection::accept(NbdIo& io) {
  switch (state_) {
    case State::lost:
      return finish(io, EIO);
    case State::ready:
      return shutting_down_ ? finish(io, EIO) : issue(io);
    case State::idle:
      waiting_.push(io);
      return connect();
    case State::connecting:
      waiting_.push(io);
      return;
  }
}

// ---- Connecting ---------------------------------------------------------------------------------

void NbdConnection::connect() {
  NbdHandle first;
  {
    const std::lock_guard lock{shared_->mutex};
    first = std::move(shared_->first);
  }
  // No request was sent, so any event of the socket is the end of the connection.
  const bool fits =
      first != nullptr && told_by(first.get()) == size_ && keeps_abilities(first.get());
  if (fits && is_silent(first.get())) return use(std::move(first));
  state_ = State::connecting;
  // Looking up a name blocks, so all of connecting is done elsewhere.
  if (threads_ == nullptr) threads_ = make_thread_engine(home_);
  connecting_.connection = this;
  connecting_.kind = FileOperation::Kind::call;
  connecting_.call = [](FileOperation& operation) -> std::int64_t {
    auto& self = static_cast<Connecting&>(operation);
    self.result = connect_nbd(self.connection->shared_->uri, kNbdConnectTimeout);
    return 0;
  };
  connecting_.done = [](FileOperation& operation, std::int64_t) {
    static_cast<Connecting&>(operation).connection->on_connected();
  };
  threads_->start(connecting_);
}

void NbdConnection::on_connected() {
  if (!connecting_.result) {
    if (!std::exchange(complained_, true)) {
      log("cannot connect (" + connecting_.result.error().text +
          "); requests fail until the NBD server runs");
    }
    state_ = State::idle;
    return fail_all(waiting_);
  }
  NbdHandle handle = std::move(*connecting_.result);
  // A server that came back as something else must not be mistaken for the one before. One that has
  // been there all the time may have grown or shrunk.
  const std::uint64_t told = told_by(handle.get());
  if (told != size_ && shared_->life != shared_->sized_in_life) {
    return lose("it has come back with " + std::to_string(told) + " bytes in place of " +
                std::to_string(size_));
  }
  if (told == size_) shared_->sized_in_life = shared_->life.load();
  if (!keeps_abilities(handle.get())) {
    return lose("it has no longer the flush, FUA or multi-conn that it had");
  }
  use(std::move(handle));
}

/// Clients rely on the abilities that the connection at the start had.
bool NbdConnection::keeps_abilities(nbd_handle* h) const {
  const bool flushes = nbd_can_flush(h) == 1 || !shared_->info.can_flush;
  const bool forces = nbd_can_fua(h) == 1 || !shared_->native_fua;
  const bool shares = nbd_can_multi_conn(h) == 1 || !shared_->multi_conn;
  return flushes && forces && shares;
}

void NbdConnection::log(const std::string& text, rtrs::LogLevel level) const {
  if (shared_->log) shared_->log(level, shared_->uri + ": " + text);
}

void NbdConnection::use(NbdHandle handle) {
  handle_ = std::move(handle);
  reach_ = std::min(size_, told_by(handle_.get()));
  max_range_ = max_range(handle_.get());
  // One of our own: libnbd closes its one when it notices the end, and a new socket may have the
  // number before we hear of it.
  const int descriptor = fcntl(nbd_aio_get_fd(handle_.get()), F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0)
    return lose(std::string{"its socket cannot be watched: "} + std::strerror(errno));
  descriptor_.assign(descriptor);
  keep_alive(descriptor);
  state_ = State::ready;
  while (!waiting_.empty() && state_ == State::ready) issue(waiting_.pop());
  home_.defer(*this);
}

/// The connection ends. All present and future requests fail.
void NbdConnection::lose(const std::string& why) {
  if (state_ == State::lost) return;
  state_ = State::lost;
  lost_ = true;
  ++shared_->life;
  in_flight_.for_each([this](const NbdIo& io) { note_cut(io); });
  log("the NBD server is lost (" + why + "); " +
      (cut_changes_ == 0
           ? "those who have the export open get EIO until they open it anew: see that the NBD "
             "server runs, then let every client disconnect and connect again"
           : "it had changes under way (" + std::to_string(cut_changes_) +
                 ") and may still carry them out, over what is newer: so nothing is written to it "
                 "any more, whoever opens it, until rnbd-server is restarted; before that see that "
                 "the NBD server has ended them, or restart that, too"));
  boost::system::error_code ignored;
  descriptor_.close(ignored);
  stall_timer_.cancel();
  handle_.reset();  // no callback runs after this
  const auto self = shared_from_this();
  fail_all(waiting_);
  fail_all(in_flight_);
  fail_all(replied_);
}

/// The result is lost. This must be noted before the request is answered.
void NbdConnection::note_cut(const NbdIo& io) {
  if (!may_alter(io)) return;
  ++cut_changes_;
  shared_->uncertain = true;
}

void NbdConnection::fail_all(NbdIoList& list) {
  NbdIoList all = list;
  list = {};
  while (!all.empty()) finish(all.pop(), EIO);
}

// ---- Requests -----------------------------------------------------------------------------------

/// Behind the end of an export that has shrunk.
bool NbdConnection::is_cut(const BackendRequest& request) const {
  return request.offset + inside(request, size_) > reach_;
}

void NbdConnection::issue(NbdIo& io) {
  if (is_cut(*io.request)) return finish(io, EIO);
  in_flight_.push(io);
  io.in_flight = true;
  changes_ += may_alter(io) ? 1 : 0;
  const bool could_send = can_send(handle_.get());
  if (send(io) < 0 && io.in_flight) {
    // Either this command was refused, or the connection is gone; run_deferred() finds out.
    const int error = nbd_get_errno();
    const bool refused = nbd_aio_is_ready(handle_.get()) == 1 && error != 0;
    if (!refused && could_send) note_cut(io);
    to_replied(io, refused ? error : ENOTCONN);
  }
  watch();
  home_.defer(*this);
}

std::int64_t NbdConnection::send(NbdIo& io) {
  if (io.stage == NbdIo::Stage::flush || io.request->operation == BackendOperation::flush) {
    io.piece = 0;
    return nbd_aio_flush(handle_.get(), {on_completion, &io, nullptr}, 0);
  }
  return send_piece(io);
}

/// Bytes of its next command at most.
std::uint64_t NbdConnection::max_piece(const NbdIo& io) const {
  switch (io.request->operation) {
    case BackendOperation::read:
    case BackendOperation::write:
      return shared_->max_payload;
    case BackendOperation::cache:
      return kMaxCompactRange;
    case BackendOperation::extents:  // each as long as all before it
      return std::min(max_range_, std::max(kMaxCompactRange, io.progress));
    default:
      return max_range_;
  }
}

std::int64_t NbdConnection::send_piece(NbdIo& io) {
  const BackendRequest& request = *io.request;
  nbd_handle* const h = handle_.get();
  const nbd_completion_callback done{on_completion, &io, nullptr};
  const std::uint64_t offset = request.offset + io.progress;
  const std::uint64_t left = inside(request, size_) - io.progress;
  const std::uint32_t fua = request.fua && shared_->native_fua ? LIBNBD_CMD_FLAG_FUA : 0;
  const std::uint64_t length = std::min(left, max_piece(io));
  io.piece = request.operation == BackendOperation::extents ? 0 : length;  // counted when told
  switch (request.operation) {
    case BackendOperation::read:
      return nbd_aio_pread(h, request.data + io.progress, io.piece, offset, done, 0);
    case BackendOperation::write:
      return nbd_aio_pwrite(h, request.data + io.progress, io.piece, offset, done, fua);
    case BackendOperation::discard:
      return nbd_aio_trim(h, io.piece, offset, done, fua);
    case BackendOperation::write_zeroes:
      return nbd_aio_zero(h, io.piece, offset, done,
                          fua | (request.no_unmap ? LIBNBD_CMD_FLAG_NO_HOLE : 0) |
                              (request.fast ? LIBNBD_CMD_FLAG_FAST_ZERO : 0));
    case BackendOperation::extents:
      return nbd_aio_ask_extents(h, length, offset, {on_extents, &io, nullptr}, done, 0);
    case BackendOperation::cache:
      return nbd_aio_cache(h, io.piece, offset, done, 0);
    case BackendOperation::flush:
      break;
  }
  return -1;
}

/// libnbd is on the stack and holds its lock: only take note.
int NbdConnection::on_completion(void* user, int* error) {
  NbdIo& io = *static_cast<NbdIo*>(user);
  NbdConnection& self = *io.connection;
  ++self.replies_;
  if (is_over(*error)) self.note_cut(io);
  self.to_replied(io, *error);
  self.home_.defer(self);
  return 1;  // forget the command
}

void NbdConnection::to_replied(NbdIo& io, int error) {
  in_flight_.remove(io);
  io.in_flight = false;
  changes_ -= may_alter(io) ? 1 : 0;
  io.error = error;
  replied_.push(io);
}

int NbdConnection::on_extents(void* user, const char* context, std::uint64_t offset,
                              NbdExtentWord* entries, std::size_t count, int*) {
  NbdIo& io = *static_cast<NbdIo*>(user);
  const BackendRequest& request = *io.request;
  if (std::strcmp(context, LIBNBD_CONTEXT_BASE_ALLOCATION) != 0 ||
      offset != request.offset + io.progress)
    return 0;
  const std::size_t max = std::max<std::size_t>(request.max_extents, 1);
  std::vector<BackendExtent>& extents = *request.extents;
  const std::uint64_t end = inside(request, io.connection->size_) - io.progress;
  for (const NbdExtent& extent : extents_of(entries, count)) {
    if (io.piece >= end) break;
    const std::uint64_t length = std::min<std::uint64_t>(extent.length, end - io.piece);
    const bool hole = (extent.flags & LIBNBD_STATE_HOLE) != 0;
    const bool zero = (extent.flags & LIBNBD_STATE_ZERO) != 0;
    if (io.appended > 0 && extents.back().hole == hole && extents.back().zero == zero) {
      extents.back().length += length;
    } else if (io.appended < max) {
      extents.push_back({length, hole, zero});
      ++io.appended;
    } else {
      break;
    }
    io.piece += length;
  }
  return 0;
}

/// A command has ended: the next piece, the flush behind it, or the end.
void NbdConnection::on_reply(NbdIo& io) {
  const BackendRequest& request = *io.request;
  if (io.error != 0) return on_error(io);
  if (io.stage == NbdIo::Stage::flush || request.operation == BackendOperation::flush) {
    return finish_durably(io);
  }
  io.progress += io.piece;
  const std::uint64_t end = inside(request, size_);
  if (request.operation == BackendOperation::extents) {
    if (io.appended == 0) return finish(io, EIO);
    const bool has_room = io.appended <= kFewExtents && io.appended < request.max_extents;
    if (io.piece != 0 && io.progress < end && has_room) return issue(io);
    // A partial answer is allowed. The padding behind the end belongs to the last extent.
    if (io.progress == end) request.extents->back().length += request.length - end;
    return finish(io, 0);
  }
  if (io.progress < end) return issue(io);
  if (request.operation == BackendOperation::read) {
    std::memset(request.data + end, 0, request.length - end);
  }
  const bool needs_flush = request.fua && !shared_->native_fua && shared_->info.can_flush;
  if (!needs_flush) return request.fua ? finish_durably(io) : finish(io, 0);
  io.stage = NbdIo::Stage::flush;
  issue(io);
}

void NbdConnection::on_error(NbdIo& io) {
  const BackendRequest& request = *io.request;
  const bool flushes =
      io.stage == NbdIo::Stage::flush || request.operation == BackendOperation::flush;
  const int error = portable_errno(io.error);
  int none = 0;
  if (flushes && tells_of_loss(io.error) &&
      shared_->flush_error.compare_exchange_strong(none, error)) {
    log(std::string{"the NBD server failed a flush ("} + std::strerror(error) +
        "); written data may be lost, and every later flush fails; see to that server's disk, then "
        "restart this one");
  }
  // The server answers the requests it has begun, and then waits for us to disconnect.
  shutting_down_ = shutting_down_ || io.error == ESHUTDOWN;
  finish(io, io.appended > 0 ? 0 : error);  // extents that were told before are an answer
}

/// Ends a request that was performed and must be durable.
void NbdConnection::finish_durably(NbdIo& io) { finish(io, shared_->flush_error); }

void NbdConnection::finish(NbdIo& io, int error) {
  BackendRequest& request = *io.request;
  if (io.origin == &home_) return request.done(request, error);
  boost::asio::post(io.origin->io(), [&request, error] { request.done(request, error); });
}

// ---- Events -------------------------------------------------------------------------------------

void NbdConnection::run_deferred() {
  while (!replied_.empty()) on_reply(replied_.pop());
  if (state_ != State::ready) return;
  if (shutting_down_ && in_flight_.empty()) return lose("it is shutting down");
  if (has_ended(handle_.get())) {
    const char* const why = nbd_aio_is_dead(handle_.get()) == 1 ? nbd_get_error() : nullptr;
    return lose(why != nullptr ? why : "it closed the connection");
  }
  arm();
}

void NbdConnection::arm() {
  using boost::asio::posix::stream_descriptor;
  const auto wait = [this](bool reading) {
    descriptor_.async_wait(
        reading ? stream_descriptor::wait_read : stream_descriptor::wait_write,
        [weak = weak_from_this(), reading](const boost::system::error_code& error) {
          const auto self = weak.lock();
          if (self != nullptr && !error) self->on_ready(reading);
        });
  };
  const unsigned direction = nbd_aio_get_direction(handle_.get());
  if ((direction & LIBNBD_AIO_DIRECTION_READ) != 0 && !read_armed_) {
    read_armed_ = true;
    wait(true);
  }
  if ((direction & LIBNBD_AIO_DIRECTION_WRITE) != 0 && !write_armed_) {
    write_armed_ = true;
    wait(false);
  }
}

void NbdConnection::on_ready(bool reading) {
  (reading ? read_armed_ : write_armed_) = false;
  if (state_ != State::ready) return;
  nbd_handle* const h = handle_.get();
  const unsigned wanted = reading ? LIBNBD_AIO_DIRECTION_READ : LIBNBD_AIO_DIRECTION_WRITE;
  // One call handles about one reply, and libnbd gets stuck when told of more than there is.
  for (unsigned calls = 0; calls < kMaxBatch; ++calls) {
    if ((nbd_aio_get_direction(h) & wanted) == 0) break;
    if ((reading ? nbd_aio_notify_read(h) : nbd_aio_notify_write(h)) < 0) break;
    // A question to a handle that has ended would replace the reason.
    if (!reading || has_ended(h) || is_silent(h)) break;
  }
  home_.defer(*this);
}

}  // namespace rnbd
