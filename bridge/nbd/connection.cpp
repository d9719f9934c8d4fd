// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/connection.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "bridge/client/geometry.hpp"
#include "bridge/nbd/worker.hpp"

namespace rnbd::nbd {
namespace {

/// After a payload of this size more of its kind is likely: read headers only, so that the next
/// payload goes straight to its place.
constexpr std::size_t kLargePayload = 32 * 1024;
constexpr std::size_t kSmallRead = 1024;
/// System calls per turn, so that one busy client does not keep the worker to itself.
constexpr int kReadsPerTurn = 8;
/// For wait_for_request(). The worker's other work waits for this long at most.
constexpr std::chrono::microseconds kRequestWait{10'000};
/// For the requests of a client that has gone. A cancelled request may still be carried out, and
/// keeps its device open.
constexpr std::chrono::seconds kGrace{2};
constexpr std::size_t kOwnCalls = 1;
constexpr std::size_t kMaxCalls = 16;  ///< at the same time

/// Without huge pages. A client that sends little touches a page of it. Those of many clients lie
/// side by side, so that a huge page would take the memory of eight.
std::unique_ptr<std::byte[]> make_staging(std::size_t size) {
  constexpr std::uintptr_t kPage = 4096;
  auto staging = std::make_unique_for_overwrite<std::byte[]>(size);
  const auto address = reinterpret_cast<std::uintptr_t>(staging.get());
  const std::uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const std::uintptr_t end = (address + size) / kPage * kPage;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_NOHUGEPAGE);
  return staging;
}

}  // namespace

Connection::Connection(Worker& worker, int socket, Agreement agreement, rtrs::LaneLoop& lane,
                       const rtrs::Log& log)
    : worker_{worker},
      agreement_{std::move(agreement)},
      stream_{socket, std::move(agreement_.tls)},
      lane_{&lane},
      log_{log},
      staging_{make_staging(kStaging)},
      read_size_{kStaging},
      requests_{this, worker.buffers(), worker.pool().memory},
      commands_{agreement_, requests_},
      calls_{worker.pool().more_calls, kOwnCalls},
      meter_{agreement_.device->name(),
             worker.pool().meters.meter(agreement_.device->name(), &worker), log_} {
  const timeval limit{.tv_sec = 0, .tv_usec = kRequestWait.count()};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
}

Connection::~Connection() {
  if (watched()) agreement_.watched->ended = true;
}

bool Connection::begin_with_unread() {
  const std::string unread = std::exchange(agreement_.unread, {});
  if (unread.size() > kStaging) return false;
  std::memcpy(staging_.get(), unread.data(), unread.size());
  staged_ = unread.size();
  parse();
  return true;
}

std::optional<Released> Connection::release() {
  const int socket =
      intake_ > Intake::ending ? -1 : ::fcntl(stream_.descriptor(), F_DUPFD_CLOEXEC, 0);
  if (socket < 0) return std::nullopt;
  return Released{.socket = socket,
                  .unread = {reinterpret_cast<const char*>(staging_.get()), staged_},
                  .flags = agreement_.flags,
                  .framing = agreement_.framing,
                  .block_status = agreement_.block_status,
                  .disk = agreement_.device->leave_behind()};
}

void Connection::resume() {
  paused_ = false;
  parse();
}

bool Connection::grow(std::uint64_t size) {
  if (calls_.has() > 0) return false;
  agreement_.device->grow_to(size);
  return true;
}

bool Connection::wait_for_request() {
  receive(0);
  return !at_rest();
}

bool Connection::answer_and_wait(rtrs::OneCall& call) {
  Replies::Batch reply;
  replies_.gather(reply);
  const std::span room{staging_.get() + staged_, std::min(read_size_, kStaging - staged_)};
  const auto [sent, received] = call.exchange(socket(), reply.pieces(), room, kRequestWait);
  if (sent < 0 && sent != -EAGAIN) {
    hang_up();
    return true;
  }
  replies_.advance(static_cast<std::size_t>(std::max<ssize_t>(sent, 0)), *this,
                   &Connection::recycle);
  full_ = !replies_.empty();
  if (received == -EAGAIN) return false;
  if (received <= 0) {
    hang_up();
    return true;
  }
  staged_ += static_cast<std::size_t>(received);
  parse();
  if (static_cast<std::size_t>(received) == room.size()) receive(MSG_DONTWAIT);
  return true;
}

bool Connection::one_under_way() const {
  return requests_.is_single() && reading() && replies_.empty() && !more_ && !left();
}

short Connection::events() const {
  unsigned events = reading() ? POLLIN : 0;
  // Requests in pieces would go on for long after the end of a client that is not read.
  if (listens_for_end()) events |= POLLRDHUP;
  if (!replies_.empty() || stream_.has_unsent()) events |= POLLOUT;
  return static_cast<short>(events);
}

void Connection::on_socket(short revents) {
  if ((revents & POLLOUT) != 0) full_ = false;
  if (reading() && ((revents & ~POLLOUT) != 0 || more())) {
    receive(MSG_DONTWAIT);
  } else if ((revents & POLLRDHUP) != 0 && listens_for_end()) {
    receive_end();
  } else if ((revents & (POLLHUP | POLLERR)) != 0) {
    hang_up();
  }
}

// ---- Arrivals -----------------------------------------------------------------------------------

void Connection::receive(int flags) {
  more_ = false;
  for (int i = 0; i < kReadsPerTurn; ++i) {
    std::size_t room = 0;
    std::size_t received = 0;
    if (!reading() || !receive_once(flags, room, received)) return;
    parse();
    flags = MSG_DONTWAIT;
    if (received < room && !stream_.has_more()) return;
  }
  more_ = true;
}

/// False: nothing was received.
bool Connection::receive_once(int flags, std::size_t& room, std::size_t& received) {
  // The rest of a payload goes straight to its place; the bytes after it go to the staging buffer.
  std::array<iovec, 2> pieces{};
  std::size_t count = 0;
  std::size_t direct = 0;
  if (arriving_ != nullptr && arriving_->error == 0) {
    direct = payload_ - arrived_;
    pieces[count++] = {arriving_->payload() + arrived_, direct};
  }
  const std::size_t rest = std::min(read_size_, kStaging - staged_);
  pieces[count++] = {staging_.get() + staged_, rest};
  const ssize_t n = stream_.receive(std::span{pieces}.first(count), flags);
  if (n <= 0) {
    if (n != -EAGAIN && n != -EINTR) hang_up();
    return false;
  }
  room = direct + rest;
  received = static_cast<std::size_t>(n);
  const std::size_t landed = std::min(received, direct);
  staged_ += received - landed;
  if (landed > 0 && (arrived_ += landed) == payload_) end_payload();
  return true;
}

/// The client sends nothing more, and its requests wait for room. If it has said goodbye it is owed
/// all answers, by the protocol; otherwise it has left.
void Connection::receive_end() {
  while (staged_ < kStaging) {
    std::array<iovec, 1> room{{{staging_.get() + staged_, kStaging - staged_}}};
    const ssize_t n = stream_.receive(room, MSG_DONTWAIT);
    if (n == -EAGAIN || n == -EINTR) return;
    if (n <= 0) {
      if (!ends_with_goodbye()) return hang_up();
      intake_ = Intake::ending;
      return;
    }
    staged_ += static_cast<std::size_t>(n);
  }
}

bool Connection::ends_with_goodbye() const {
  const std::size_t size = request_size(agreement_.framing);
  if (staged_ < size) return false;
  const std::byte* const last = staging_.get() + staged_ - size;
  const RequestHead head = agreement_.framing == Framing::extended
                               ? decode_head<Framing::extended>(last)
                               : decode_head<Framing::structured>(last);
  return !head.garbage && head.command == Command::disconnect;
}

void Connection::parse() {
  std::size_t used = 0;
  crowded_ = false;
  while (intake_ <= Intake::ending) {
    const std::byte* const from = staging_.get() + used;
    const std::size_t size = staged_ - used;
    if (arriving_ != nullptr) {
      if (!take_payload(from, size, used)) break;
      continue;
    }
    const std::size_t head_size = request_size(agreement_.framing);
    if (begins_none() || size < head_size) break;
    if (!requests_.has_room()) {
      crowded_ = true;
      break;
    }
    used += head_size;
    agreement_.framing == Framing::extended ? begin<Framing::extended>(from)
                                            : begin<Framing::structured>(from);
  }
  // Data looked like a goodbye.
  if (intake_ == Intake::ending && !crowded_ && !begins_none()) return hang_up();
  staged_ -= used;
  if (used > 0 && staged_ > 0) std::memmove(staging_.get(), staging_.get() + used, staged_);
}

/// False: the rest is still to come.
bool Connection::take_payload(const std::byte* from, std::size_t size, std::size_t& used) {
  const std::size_t piece = std::min(payload_ - arrived_, size);
  if (arriving_->error == 0) std::memcpy(arriving_->payload() + arrived_, from, piece);
  arrived_ += piece;
  used += piece;
  if (arrived_ < payload_) return false;
  end_payload();
  return true;
}

/// A request with a payload begins here. Clients expect no answer while they are still sending it.
void Connection::end_payload() {
  Request& request = *std::exchange(arriving_, nullptr);
  if (request.error != 0) return answer(request, request.error);
  if (request.command == Command::block_status) {
    const auto length = decode_filter(request.payload(), payload_);
    if (!length) return answer(request, EINVAL);
    request.length = *length;
  }
  execute(request);
}

/// Each kind of header has its own code, so that the compact one costs nothing for the other.
template <Framing framing>
void Connection::begin(const std::byte* from) {
  const RequestHead head = decode_head<framing>(from);
  if (head.garbage) return break_off("it sent garbage where a request should be");
  if (head.command == Command::disconnect) {
    if (watched()) agreement_.watched->goodbye = true;
    return drain();
  }
  constexpr bool is_extended = framing == Framing::extended;
  const bool too_long = head.payload > BlockSizes{}.maximum;
  // A compact header has 32 bits for it, which can be skipped.
  if (is_extended && too_long) {
    return break_off("it announced a payload of " + std::to_string(head.payload) + " bytes");
  }
  Request& request = requests_.take();
  request.command = head.command;
  request.flags = head.flags;
  request.cookie = head.cookie;
  request.offset = head.offset;
  request.length = head.length;
  request.rest = 0;
  request.error = is_extended ? commands_.judge_payload(head) : 0;
  if (head.payload == 0) {
    return request.error == 0 ? execute(request) : answer(request, request.error);
  }
  payload_ = head.payload;
  read_size_ = payload_ > kLargePayload ? kSmallRead : kStaging;
  if (too_long) {
    request.error = EINVAL;
  } else if (request.error == 0 && !requests_.take_buffer(request, payload_)) {
    request.error = ENOMEM;
  }
  if (request.error != 0) read_size_ = kStaging;  // the payload is not needed
  request.state = Request::State::arriving;
  arriving_ = &request;
  arrived_ = 0;
}

void Connection::break_off(const std::string& why) {
  if (log_) log_(rtrs::LogLevel::warning, "NBD client: " + why + "; disconnecting it");
  hang_up();
}

// ---- Requests -----------------------------------------------------------------------------------

void Connection::recycle(Request& request) {
  meter_.end(request, EINTR);  // its answer will not be sent
  requests_.give_back(request);
}

void Connection::send() {
  if (full_ || (replies_.empty() && !stream_.has_unsent())) return;
  const Replies::Status status = replies_.send(stream_, *this, &Connection::recycle);
  if (status == Replies::Status::broken) return hang_up();
  full_ = status == Replies::Status::full;
  if (crowded_) parse();
}

void Connection::drain() {
  intake_ = std::max(intake_, Intake::drained);
  more_ = false;
  if (arriving_ != nullptr) recycle(*std::exchange(arriving_, nullptr));
}

void Connection::hang_up() {
  if (std::exchange(intake_, Intake::left) == Intake::left) return;
  given_up_at_ = std::chrono::steady_clock::now() + kGrace;
  drain();
  replies_ = {};
  waiting_.clear();
  for (Request& request : requests_.all()) {
    const bool unclaimed = request.state == Request::State::unclaimed;
    const bool idle =
        request.state == Request::State::answered || request.state == Request::State::waiting;
    if (unclaimed) {
      worker_.forget_claim(request);
      end_claim(request, EINTR);
    }
    if (idle || unclaimed) recycle(request);
  }
  // The session counts cancelled writes: the next user of the device waits for them.
  if (requests_.are_changing()) give_up();
}

void Connection::give_up() {
  hang_up();
  if (given_up_.exchange(true)) return;  // calls look at it
  for (Request& request : requests_.all()) {
    const bool claiming = request.state == Request::State::claiming;
    if (request.state != Request::State::on_lane && !claiming) continue;
    if (!lane_->cancel(request.job)) continue;  // it has ended, and the lane returns it
    if (claiming) {
      end_claim(request, EINTR);
      worker_.claim_ended(*this);
      recycle(request);
      continue;
    }
    agreement_.device->end(request.transfer, request.begun, EINTR);
    request.operation.reset();
    recycle(request);
  }
}

// ---- Their way to the device --------------------------------------------------------------------

void Connection::execute(Request& request) {
  meter_.begin(request);
  start(request);
}

void Connection::start(Request& request) {
  const int error = commands_.prepare(request);
  if (error == EAGAIN && request.changes() && agreement_.device->must_claim())
    return claim(request);
  if (error == EAGAIN) return call(request);
  if (error != 0) return answer(request, error);
  request.operation.emplace(agreement_.device->geometry(), agreement_.device->handle(),
                            request.transfer);
  request.job.operation = &*request.operation;
  request.state = Request::State::on_lane;
  worker_.start(request);
}

void Connection::on_lane(Request& request) {
  if (request.state == Request::State::claiming) {
    const auto error = end_claim(request, request.claim->operation().error());
    worker_.claim_ended(*this);
    if (left()) return recycle(request);
    if (!error) return call(request);
    return *error == 0 ? start(request) : answer(request, *error);
  }
  const int error =
      agreement_.device->end(request.transfer, request.begun, request.operation->error());
  request.operation.reset();
  if (error == EAGAIN && !left()) return call(request);
  end_piece(request, error);
}

// ---- The right to change the device -------------------------------------------------------------

/// Only a question waits for its turn: what is known already needs none.
void Connection::claim(Request& request) {
  using State = Disk::BegunClaim::State;
  if (!worker_.may_claim(*this)) return call(request);
  auto begun = agreement_.device->begin_claim([this, &request] { worker_.claim_again(request); });
  switch (begun.state) {
    case State::granted:
      return start(request);
    case State::joined:
      request.state = Request::State::joining;
      return;
    case State::refused:
      return answer(request, begun.error);
    case State::blocking:
      return call(request);
    case State::asking:
      break;
  }
  request.claim = std::move(begun.claim);
  request.state = Request::State::unclaimed;
  worker_.claim(request);
}

void Connection::start_claim(Request& request) {
  request.job.operation = &request.claim->operation();
  request.state = Request::State::claiming;
  worker_.start(request);
}

void Connection::claim_again(Request& request) { left() ? recycle(request) : start(request); }

std::optional<int> Connection::end_claim(Request& request, int error) {
  const auto result = request.claim->end(error);
  request.claim.reset();
  return result;
}

// ---- Calls that may wait ------------------------------------------------------------------------

void Connection::call(Request& request) {
  request.state = Request::State::waiting;
  waiting_.push_back(&request);
  start_calls();
}

/// Each takes a thread, so there are few at a time. The rest waits for the end of one of them.
void Connection::start_calls() {
  while (!waiting_.empty() && calls_.has() < kMaxCalls && calls_.may_grow()) {
    Request& request = *waiting_.front();
    waiting_.pop_front();
    calls_.take(1);
    request.state = Request::State::blocking;
    worker_.call(
        [this, &request] {
          const Interrupt interrupt{
              [](void* context) { return static_cast<Connection*>(context)->given_up_.load(); },
              this};
          return commands_.call(request, interrupt);
        },
        request);
  }
}

void Connection::on_call(Request& request, int error) {
  calls_.give_back(1);
  end_piece(request, error);
  start_calls();
}

// ---- Answers ------------------------------------------------------------------------------------

void Connection::answer(Request& request, int error) {
  if (left()) return recycle(request);
  meter_.end(request, error);
  if (error != 0) meter_.report(request, error, std::chrono::steady_clock::now());
  request.error = error;
  make_reply(request, agreement_.framing);
  request.state = Request::State::answered;
  replies_.push(request);
}

}  // namespace rnbd::nbd
