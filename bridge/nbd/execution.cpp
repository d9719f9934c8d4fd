// SPDX-License-Identifier: BSD-3-Clause
// Carries NBD requests out: the half of Connection that knows devices.
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bridge/client/block_sizes.hpp"
#include "bridge/nbd/connection.hpp"
#include "bridge/nbd/worker.hpp"
#include "bridge/protocol/nbd_errors.hpp"
#include "bridge/protocol/printable.hpp"
#include "rdma/wire/probe.hpp"

namespace rnbd::nbd {
namespace {

using rnbd::wire::IoOperation;

constexpr std::size_t kMaxExtents = 256;  ///< per reply
constexpr std::size_t kMaxCalls = 16;     ///< at the same time
constexpr std::chrono::seconds kReportPeriod{1};

const char* name_of(Command command) {
  switch (command) {
    case Command::read:
      return "read";
    case Command::write:
      return "write";
    case Command::disconnect:
      return "disconnect";
    case Command::flush:
      return "flush";
    case Command::trim:
      return "trim";
    case Command::cache:
      return "cache";
    case Command::write_zeroes:
      return "write zeroes";
    case Command::block_status:
      return "block status";
  }
  return "unknown command";
}

/// The transmission flag that offers a command; 0: it needs none.
constexpr std::uint16_t offer_of(Command command) {
  switch (command) {
    case Command::flush:
      return kSendFlush;
    case Command::trim:
      return kSendTrim;
    case Command::cache:
      return kSendCache;
    case Command::write_zeroes:
      return kSendWriteZeroes;
    default:
      return 0;
  }
}

MeteredOperation metered(Command command) {
  switch (command) {
    case Command::read:
      return MeteredOperation::read;
    case Command::write:
      return MeteredOperation::write;
    case Command::flush:
      return MeteredOperation::flush;
    case Command::trim:
      return MeteredOperation::discard;
    case Command::write_zeroes:
      return MeteredOperation::write_zeroes;
    default:
      return MeteredOperation::other;
  }
}

}  // namespace

void Connection::begin_metering(Request& request) {
  request.metered = true;
  RTRS_PROBE(rnbd, nbd_start, &request, traced_name_, static_cast<int>(request.command),
             request.offset, request.length);
  const bool timed = meter_->begin(metered(request.command));
  request.began =
      timed ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point{};
}

void Connection::end_metering(Request& request, int error) {
  if (!std::exchange(request.metered, false)) return;
  RTRS_PROBE(rnbd, nbd_done, &request, error);
  std::chrono::nanoseconds took{};
  if (request.began.time_since_epoch().count() != 0) {
    took = std::chrono::steady_clock::now() - request.began;
  }
  meter_->end(metered(request.command), request.length, error,
              static_cast<std::uint64_t>(took.count()));
}

void Connection::execute(Request& request) {
  begin_metering(request);
  const int error = prepare(request);
  if (error == EAGAIN) return call(request);
  if (error != 0) return answer(request, error);
  request.operation.emplace(agreement_.device->geometry(), agreement_.device->handle(),
                            request.transfer);
  request.job.operation = &*request.operation;
  request.state = Request::State::on_lane;
  worker_.start(request);
}

bool Connection::inside(const Request& request) const {
  const std::uint64_t size = agreement_.device->geometry().size;
  return request.offset <= size && request.length <= size - request.offset;
}

/// True if the client was told that this command is allowed.
bool Connection::offered(const Request& request) const {
  const bool changes = request.command == Command::write || request.command == Command::trim ||
                       request.command == Command::write_zeroes;
  unsigned needed = offer_of(request.command);
  if (changes && (request.flags & kFua) != 0) needed |= kSendFua;
  if ((request.flags & kFastZero) != 0) needed |= kSendFastZero;
  return (needed & ~unsigned{agreement_.flags}) == 0;
}

/// 0: `transfer` has been begun. EAGAIN: it takes a call that may wait. Otherwise the answer.
int Connection::prepare(Request& request) {
  // A client may set FUA on anything.
  const unsigned flags = request.flags & ~unsigned{kFua};
  request.transfer = {.offset = request.offset, .length = request.length};
  switch (request.command) {
    case Command::read:
      if ((flags & ~unsigned{kDf}) != 0 || (flags != 0 && !agreement_.structured)) return EINVAL;
      if (request.length == 0 || request.length > BlockSizes{}.maximum) return EINVAL;
      if (!inside(request)) return EINVAL;
      if (!take_buffer(request, request.length)) return ENOMEM;
      request.transfer.operation = IoOperation::read;
      request.transfer.into = request.payload();
      break;
    case Command::write:
    case Command::trim:
    case Command::write_zeroes:
      if (const int error = prepare_change(request)) return error;
      break;
    case Command::flush:
      if (!offered(request) || flags != 0 || request.offset != 0 || request.length != 0)
        return EINVAL;
      request.transfer.operation = IoOperation::flush;
      break;
    case Command::cache:
      return !offered(request) || flags != 0 ? EINVAL : EAGAIN;
    case Command::block_status:
      if ((flags & ~unsigned{kReqOne}) != 0 || !agreement_.block_status) return EINVAL;
      if (request.length == 0 || !inside(request)) return EINVAL;
      return take_buffer(request, kMaxExtents * sizeof(StatusExtent)) ? EAGAIN : ENOMEM;
    case Command::disconnect:
    default:
      return EINVAL;
  }
  return agreement_.device->begin(request.transfer, request.begun);
}

int Connection::prepare_change(Request& request) {
  const unsigned flags = request.flags;
  const bool zeroes = request.command == Command::write_zeroes;
  const unsigned known = zeroes ? kFua | kNoHole | kFastZero : kFua;
  if ((flags & ~known) != 0 || request.length == 0) return EINVAL;
  if (agreement_.device->read_only()) return EROFS;
  if (!offered(request)) return EINVAL;
  if (!inside(request)) return request.command == Command::trim ? EINVAL : ENOSPC;
  request.transfer.fua = (flags & kFua) != 0;
  if (request.command == Command::write) {
    request.transfer.operation = IoOperation::write;
    request.transfer.from = request.payload();
  } else if (zeroes) {
    request.transfer.operation = IoOperation::write_zeroes;
    request.transfer.no_unmap = (flags & kNoHole) != 0;
    request.transfer.fast = (flags & kFastZero) != 0;
  } else {
    request.transfer.operation = IoOperation::discard;
  }
  return 0;
}

void Connection::on_lane(Request& request) {
  const int error =
      agreement_.device->end(request.transfer, request.begun, request.operation->error());
  request.operation.reset();
  if (error == EAGAIN && !left()) return call(request);
  answer(request, error);
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
          return make_call(request, interrupt);
        },
        request);
  }
}

int Connection::make_call(Request& request, const Interrupt& interrupt) {
  Disk& device = *agreement_.device;
  const bool fua = (request.flags & kFua) != 0;
  switch (request.command) {
    case Command::read:
      return device.read(request.offset, {request.payload(), request.length}, interrupt);
    case Command::write:
      return device.write(request.offset, {request.payload(), request.length}, fua, interrupt);
    case Command::flush:
      return device.flush(interrupt);
    case Command::trim:
      return device.discard(request.offset, request.length, fua, interrupt);
    case Command::write_zeroes:
      return device.write_zeroes(request.offset, request.length,
                                 {.fua = fua,
                                  .may_unmap = (request.flags & kNoHole) == 0,
                                  .fast = (request.flags & kFastZero) != 0},
                                 interrupt);
    case Command::cache:
      return device.cache(request.offset, request.length, interrupt);
    case Command::block_status:
      return ask_extents(request, interrupt);
    case Command::disconnect:
      break;
  }
  return EINVAL;
}

int Connection::ask_extents(Request& request, const Interrupt& interrupt) {
  std::vector<rnbd::wire::Extent> runs;
  const std::size_t most = (request.flags & kReqOne) != 0 ? 1 : kMaxExtents;
  if (int error =
          agreement_.device->extents(request.offset, request.length, most, runs, interrupt)) {
    return error;
  }
  request.extents = 0;
  for (const auto& run : runs) {
    StatusExtent extent;
    extent.length = static_cast<std::uint32_t>(run.length);
    const std::uint32_t flags = run.flags;
    extent.flags = ((flags & rnbd::wire::kExtentHole) != 0 ? kStateHole : 0) |
                   ((flags & rnbd::wire::kExtentZero) != 0 ? kStateZero : 0);
    std::memcpy(request.payload() + request.extents++ * sizeof(extent), &extent, sizeof(extent));
  }
  return 0;
}

void Connection::on_call(Request& request, int error) {
  calls_.give_back(1);
  answer(request, error);
  start_calls();
}

// ---- Answers ------------------------------------------------------------------------------------

void Connection::answer(Request& request, int error) {
  if (left()) return recycle(request);
  end_metering(request, error);
  if (error != 0) report(request, error);
  request.error = error;
  make_reply(request, agreement_.structured);
  request.state = Request::State::answered;
  replies_.push(request);
}

/// A device that fails, fails often.
void Connection::report(const Request& request, int error) {
  if (!log_ || error == EOPNOTSUPP) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - reported_ < kReportPeriod) {
    ++unreported_;
    return;
  }
  reported_ = now;
  std::string line = in_quotes(agreement_.device->name()) + ": " + name_of(request.command) +
                     " of " + std::to_string(request.length) + " bytes at " +
                     std::to_string(request.offset) + ": " + describe_error(error);
  if (unreported_ > 0) line += " (and " + std::to_string(unreported_) + " other failures before)";
  unreported_ = 0;
  log_(rtrs::LogLevel::warning, line);
}

}  // namespace rnbd::nbd
