// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/commands.hpp"

#include <cerrno>
#include <cstring>
#include <vector>

#include "bridge/client/geometry.hpp"

namespace rnbd::nbd {
namespace {

using rnbd::wire::IoOperation;

constexpr std::size_t kMaxExtents = 256;  ///< per reply

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

}  // namespace

bool Commands::inside(const Request& request) const {
  const std::uint64_t size = agreement_.device->geometry().size;
  return request.offset <= size && request.length <= size - request.offset;
}

/// True if the client was told that this command is allowed.
bool Commands::offered(const Request& request) const {
  unsigned needed = offer_of(request.command);
  if (request.changes() && (request.flags & kFua) != 0) needed |= kSendFua;
  if ((request.flags & kFastZero) != 0) needed |= kSendFastZero;
  return (needed & ~unsigned{agreement_.flags}) == 0;
}

/// 0: `transfer` has been begun. EAGAIN: it takes a call that may wait. Otherwise the answer.
int Commands::prepare(Request& request) {
  // A client may set FUA on anything.
  const unsigned flags = request.flags & ~unsigned{kFua};
  request.transfer = {.offset = request.offset, .length = request.length};
  switch (request.command) {
    case Command::read:
      if ((flags & ~unsigned{kDf}) != 0 || (flags != 0 && !agreement_.structured)) return EINVAL;
      if (request.length == 0 || request.length > BlockSizes{}.maximum) return EINVAL;
      if (!inside(request)) return EINVAL;
      if (!requests_.take_buffer(request, request.length)) return ENOMEM;
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
      return requests_.take_buffer(request, kMaxExtents * sizeof(StatusExtent)) ? EAGAIN : ENOMEM;
    case Command::disconnect:
    default:
      return EINVAL;
  }
  return agreement_.device->begin(request.transfer, request.begun);
}

int Commands::prepare_change(Request& request) {
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

int Commands::call(Request& request, const Interrupt& interrupt) {
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

int Commands::ask_extents(Request& request, const Interrupt& interrupt) {
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

}  // namespace rnbd::nbd
