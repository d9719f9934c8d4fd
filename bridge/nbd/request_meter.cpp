// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/request_meter.hpp"

#include <cerrno>

#include "bridge/protocol/nbd_errors.hpp"
#include "bridge/protocol/printable.hpp"
#include "rdma/wire/probe.hpp"

namespace rnbd::nbd {
namespace {

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

void RequestMeter::begin(Request& request) {
  request.metered = true;
  RTRS_PROBE(rnbd, nbd_start, &request, device_.c_str(), static_cast<int>(request.command),
             request.offset, request.length);
  const bool timed = meter_->begin(metered(request.command));
  request.began =
      timed ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point{};
}

void RequestMeter::end(Request& request, int error) {
  if (!std::exchange(request.metered, false)) return;
  RTRS_PROBE(rnbd, nbd_done, &request, error);
  std::chrono::nanoseconds took{};
  if (request.began.time_since_epoch().count() != 0) {
    took = std::chrono::steady_clock::now() - request.began;
  }
  meter_->end(metered(request.command), request.length, error,
              static_cast<std::uint64_t>(took.count()));
}

void RequestMeter::report(const Request& request, int error,
                          std::chrono::steady_clock::time_point now) {
  if (!log_ || error == EOPNOTSUPP) return;
  const auto left_out = limit_.take(now.time_since_epoch());
  if (!left_out) return;
  std::string line = in_quotes(device_) + ": " + name_of(request.command) + " of " +
                     std::to_string(request.length) + " bytes at " +
                     std::to_string(request.offset) + ": " + describe_error(error);
  if (*left_out > 0) line += " (and " + std::to_string(*left_out) + " other failures before)";
  log_(rtrs::LogLevel::warning, line);
}

}  // namespace rnbd::nbd
