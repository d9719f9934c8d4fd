// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/queue.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "bridge/client/session.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd::vhost {
namespace {

constexpr const char* kMemoryIsLost = "its memory is lost";

std::uint64_t total(std::span<const Piece> pieces) {
  std::uint64_t sum = 0;
  for (const Piece& piece : pieces) sum += piece.length;
  return sum;
}

/// Calls `copy` for each part of the bytes of `pieces` from `skip` on, with its address and with
/// the part of `data` that belongs to it. False: a copy failed, or `pieces` are too short.
template <class Bytes, class Copy>
bool walk(std::span<const Piece> pieces, std::uint64_t skip, Bytes data, const Copy& copy) {
  for (const Piece& piece : pieces) {
    if (data.empty()) return true;
    if (skip >= piece.length) {
      skip -= piece.length;
      continue;
    }
    const auto size =
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.length - skip, data.size()));
    if (piece.address + skip < skip || !copy(piece.address + skip, data.first(size))) return false;
    data = data.subspan(size);
    skip = 0;
  }
  return data.empty();
}

/// Copies from the guest's buffers.
bool gather(const GuestMemory& memory, std::span<const Piece> pieces, std::uint64_t skip,
            MutableBytes into) {
  return walk(pieces, skip, into,
              [&](std::uint64_t address, MutableBytes part) { return memory.read(address, part); });
}

/// Copies to the guest's buffers.
bool scatter(const GuestMemory& memory, std::span<const Piece> pieces, std::uint64_t skip,
             ConstBytes from) {
  return walk(pieces, skip, from,
              [&](std::uint64_t address, ConstBytes part) { return memory.write(address, part); });
}

MeteredOperation metered(BlockCommand command) {
  switch (command) {
    case BlockCommand::read:
      return MeteredOperation::read;
    case BlockCommand::write:
      return MeteredOperation::write;
    case BlockCommand::flush:
      return MeteredOperation::flush;
    case BlockCommand::discard:
      return MeteredOperation::discard;
    case BlockCommand::write_zeroes:
      return MeteredOperation::write_zeroes;
    case BlockCommand::get_id:
      break;
  }
  return MeteredOperation::other;
}

bool has_data(const BlockRequest& request) {
  return request.command == BlockCommand::read || request.command == BlockCommand::write ||
         request.command == BlockCommand::get_id;
}

/// Adds to the count of an eventfd. One that is full has been written to already. It does not
/// block, but the front-end can take that back at any time, and so the count is looked at before.
void signal(int event) {
  pollfd polled{event, POLLOUT, 0};
  if (event < 0 || ::poll(&polled, 1, 0) <= 0) return;
  const std::uint64_t one = 1;
  (void)!::write(event, &one, sizeof(one));
}

SplitRing::Parts parts_of(const RingSettings& settings, const GuestMemory& memory) {
  const std::uint32_t size = settings.size;
  return {.descriptors =
              memory.at_user(settings.addresses.descriptors, SplitRing::bytes_of_descriptors(size)),
          .available =
              memory.at_user(settings.addresses.available, SplitRing::bytes_of_available(size)),
          .used = memory.at_user(settings.addresses.used, SplitRing::bytes_of_used(size))};
}

}  // namespace

// ---- The ring -----------------------------------------------------------------------------------

std::string Queue::start(const RingSettings& settings, std::shared_ptr<const GuestMemory> memory) {
  if (!memory) return "a ring starts before there is memory";
  const SplitRing::Parts parts = parts_of(settings, *memory);
  if (!SplitRing::is_possible(settings.size, parts))
    return "a ring starts that is not all in memory, or has no possible size";
  memory_ = std::move(memory);
  settings_ = settings;
  given_up_ = false;
  ring_ = SplitRing{settings.size,
                    parts,
                    settings.base,
                    {.event_index = (settings.features & kFeatureEventIndex) != 0,
                     .indirect = (settings.features & kFeatureIndirect) != 0}};
  state_ = State::running;
  call_driver();
  return "";
}

void Queue::move_to(std::shared_ptr<const GuestMemory> memory) {
  memory_ = std::move(memory);
  if (state_ == State::none) return;
  const SplitRing::Parts parts = parts_of(settings_, *memory_);
  if (SplitRing::is_possible(settings_.size, parts)) return ring_.move_to(parts);
  fail("its ring is in no memory any more");
  state_ = State::none;
}

/// Stops the ring, which only its driver can start again.
void Queue::fail(const std::string& why) {
  stop();
  host_.say(rtrs::LogLevel::warning,
            "queue " + std::to_string(index_) + " of the guest stops: " + why);
  signal(error_.get());
}

bool Queue::take() {
  bool any = false;
  for (std::size_t count = 0; count < kMaxInFlight && runs() && has_room(); ++count) {
    Request& request = take_request();
    const SplitRing::Taken taken = ring_.take(request.chain, *memory_);
    if (taken != SplitRing::Taken::chain) {
      give_back(request);
      if (taken == SplitRing::Taken::broken) fail("its driver has broken the rules of virtqueues");
      break;
    }
    request.place = static_cast<std::uint16_t>(ring_.base() - 1);
    any = true;
    if (!begin(request)) {
      give_back(request);
      fail(memory_->is_lost() ? kMemoryIsLost
                              : "its driver has sent a request without a header, a place for the "
                                "status, or memory");
    }
  }
  return any;
}

/// Ends that were shown before the call came, or by a bridge that has ended between both, have
/// called nobody. One call too many does no harm.
void Queue::set_call(rtrs::OwnedFd call) {
  call_ = std::move(call);
  if (state_ != State::none) call_driver();
}

void Queue::call_driver() const { signal(call_.get()); }

Request& Queue::take_request() {
  if (free_ == nullptr) {
    free_ = &requests_.emplace_back();
    free_->queue = this;
    free_->job.context = free_;
  }
  singles_ = ++in_flight_ == 1 ? singles_ + 1 : 0;
  Request* const request = free_;
  free_ = request->next;
  return *request;
}

void Queue::give_back(Request& request) {
  host_.memory_used() -= request.buffer.size;
  host_.buffers().give_back(std::move(request.buffer));
  request.buffer = {};
  request.state = Request::State::free;
  request.next = free_;
  free_ = &request;
  --in_flight_;
}

// ---- Their way to the disk ----------------------------------------------------------------------

/// False: the chain is none of a request.
bool Queue::read_head(Request& request, RequestHeader& header, RequestShape& shape,
                      RangeData& range) {
  const std::uint64_t readable = total(request.chain.to_read());
  const std::uint64_t writable = total(request.chain.to_write());
  if (readable < sizeof(header) || writable < 1) return false;
  const auto head = std::as_writable_bytes(std::span{&header, 1});
  if (!gather(*memory_, request.chain.to_read(), 0, head)) return false;
  shape = {readable - sizeof(header), writable - 1};
  if (!has_range(header, shape)) return true;
  const auto bytes = std::as_writable_bytes(std::span{&range, 1});
  return gather(*memory_, request.chain.to_read(), sizeof(header), bytes);
}

bool Queue::begin(Request& request) {
  RequestHeader header;
  RequestShape shape;
  RangeData range;
  if (!read_head(request, header, shape, range)) return false;
  const Judgement judgement = judge(header, shape, range, host_.offer(), settings_.features);
  if (!judgement.request) {
    finish(request, judgement.status);
    return true;
  }
  request.block = *judgement.request;
  if (has_data(request.block) && request.block.length > 0) {
    request.buffer = host_.buffers().take(request.block.length);
    host_.memory_used() += request.buffer.size;
    if (request.buffer.size == 0) {
      finish(request, BlockStatus::io_error);
      return true;
    }
  }
  if (request.block.command == BlockCommand::write) {
    const MutableBytes data{request.buffer.data(), request.block.length};
    if (!gather(*memory_, request.chain.to_read(), sizeof(header), data)) return false;
  }
  carry_out(request);
  return true;
}

void Queue::carry_out(Request& request) {
  request.timed = host_.meter().begin(metered(request.block.command));
  if (request.timed) request.began = std::chrono::steady_clock::now();
  if (request.block.command == BlockCommand::get_id) {
    std::memset(request.buffer.data(), 0, kIdSize);
    const std::string& name = host_.disk().name();
    std::memcpy(request.buffer.data(), name.data(), std::min(name.size(), kIdSize));
    return end(request, 0);
  }
  if (request.block.length == 0 && request.block.command != BlockCommand::flush)
    return end(request, 0);
  send(request);
}

Transfer Queue::transfer_of(Request& request) const {
  const bool durable = wants_durable_writes(settings_.features, host_.disk().geometry());
  return vhost::transfer_of(request.block, request.buffer.data(), durable);
}

void Queue::send(Request& request) {
  request.transfer = transfer_of(request);
  const int error = host_.disk().begin(request.transfer, request.begun);
  if (error == EAGAIN) return call(request);
  if (error != 0) return end(request, error);
  request.operation.emplace(host_.disk().geometry(), host_.disk().handle(), request.transfer);
  request.job.operation = &*request.operation;
  request.state = Request::State::on_lane;
  host_.lane().start(request.job);
  host_.started();
}

/// The first change of a disk asks for the right to it, and parts of blocks are read first.
void Queue::call(Request& request) {
  request.state = Request::State::calling;
  host_.call(
      [this, &request] {
        if (given_up_) return EINTR;  // so that many calls end at once
        const rtrs::Interrupt interrupt{
            [](void* context) { return static_cast<Queue*>(context)->given_up_.load(); }, this};
        Disk& disk = host_.disk();
        const Transfer transfer = transfer_of(request);
        return request.block.command == BlockCommand::flush ? disk.flush(interrupt)
                                                            : disk.run(transfer, interrupt);
      },
      request);
}

void Queue::on_lane(Request& request) {
  const int error = host_.disk().end(request.transfer, request.begun, request.operation->error());
  request.operation.reset();
  if (error == EAGAIN && !given_up_) return call(request);
  end(request, error);
}

void Queue::on_call(Request& request) { end(request, request.error); }

/// A device that takes up a ring goes on where its driver has seen ends: chains that ended before
/// earlier ones would be lost to it. Only then all of them have to end.
bool Queue::has_ended_in_order() const {
  return std::ranges::all_of(requests_, [this](const Request& request) {
    const auto behind = static_cast<std::uint16_t>(ring_.base() - request.place);
    return request.state == Request::State::free || behind <= in_flight_;
  });
}

void Queue::abandon() {
  if (is_idle()) return stop();
  publish();
  if (state_ != State::none && has_ended_in_order()) {
    ring_.take_back(static_cast<std::uint16_t>(in_flight_));
    leave_ring();
  }
  stop();
  given_up_ = true;
  for (Request& request : requests_) {
    if (request.state != Request::State::on_lane) continue;
    if (!host_.lane().cancel(request.job)) continue;  // it has ended, and the lane returns it
    const int error = host_.disk().end(request.transfer, request.begun, EINTR);
    request.operation.reset();
    end(request, error);
  }
}

// ---- Their ends ---------------------------------------------------------------------------------

void Queue::end(Request& request, int error) {
  std::chrono::nanoseconds took{};
  if (request.timed) took = std::chrono::steady_clock::now() - request.began;
  host_.meter().end(metered(request.block.command), request.block.length, error,
                    static_cast<std::uint64_t>(took.count()));
  if (error != 0) report(request, error);
  finish(request, status_of(error));
}

/// Writes what was read, and the status, which is the last byte of the chain. A request whose bytes
/// were lost is not put back.
void Queue::finish(Request& request, BlockStatus status) {
  const std::span<const Piece> pieces = request.chain.to_write();
  const std::uint64_t writable = total(pieces);
  const bool has_read = status == BlockStatus::ok && request.buffer.size != 0 &&
                        request.block.command != BlockCommand::write;
  const ConstBytes data{request.buffer.data(), has_read ? request.block.length : 0};
  const auto last = static_cast<std::byte>(status);
  const bool told = state_ != State::none && scatter(*memory_, pieces, 0, data) &&
                    scatter(*memory_, pieces, writable - 1, {&last, 1});
  // The driver may look at so many bytes from the first one on, and the status is the last one.
  const std::uint64_t written = data.size() == writable - 1 ? writable : data.size();
  if (told) {
    ring_.put(request.chain.head,
              static_cast<std::uint32_t>(std::min<std::uint64_t>(written, UINT32_MAX)));
  }
  give_back(request);
  if (!told && state_ == State::running)
    fail(memory_->is_lost() ? kMemoryIsLost : "a buffer of a request is not in memory");
}

/// A disk that fails, fails often: the limit is a line a second.
void Queue::report(const Request& request, int error) {
  if (error == EOPNOTSUPP || given_up_) return;
  const auto left_out = limit_.take(std::chrono::steady_clock::now().time_since_epoch());
  if (!left_out) return;
  std::string line = in_quotes(host_.disk().name()) + ": " +
                     to_string(metered(request.block.command)) + " of " +
                     std::to_string(request.block.length) + " bytes at " +
                     std::to_string(request.block.offset) + ": " + describe_error(error);
  if (*left_out > 0) line += " (and " + std::to_string(*left_out) + " other failures before)";
  host_.say(rtrs::LogLevel::warning, line);
}

}  // namespace rnbd::vhost
