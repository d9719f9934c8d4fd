// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/commands.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "bridge/client/geometry.hpp"

namespace rnbd::nbd {
namespace {

using rnbd::wire::IoOperation;

constexpr std::size_t kMaxExtents = 256;                                         ///< per reply
constexpr std::size_t kExtentRoom = kMaxExtents * sizeof(ExtendedStatusExtent);  ///< bytes
static_assert(kExtentRoom <= BufferPool::kSmallest);
/// Units: bytes. A zeroing or trim holds up overlapping writes of other clients, and at first all
/// of theirs, for a piece of about this size. Pieces end at its multiples, or at the last end of a
/// granule before.
constexpr std::uint64_t kMaxPiece = std::uint64_t{1} << 30;
/// Units: bytes of a question for extents. A server in memory looks at each of its blocks.
constexpr std::uint64_t kMaxQuestion = std::uint64_t{64} << 30;
/// Units: bytes that the server is asked to read ahead at a time. Between two of them it is seen
/// that the client has left.
constexpr std::uint64_t kMaxReadAhead = std::uint64_t{64} << 20;

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

template <class Extent>
void put_extent(Request& request, std::uint64_t length, std::uint32_t flags) {
  Extent extent;
  extent.length = static_cast<decltype(extent.length.value())>(length);
  extent.flags = flags;
  std::memcpy(request.payload() + request.extents++ * sizeof(extent), &extent, sizeof(extent));
}

}  // namespace

int Commands::judge_payload(const RequestHead& head) const {
  if (head.command == Command::block_status && head.announced) {
    const bool offered = (agreement_.flags & kBlockStatusPayload) != 0;
    return offered && head.payload == sizeof(StatusFilter) ? 0 : EINVAL;
  }
  return head.announced && head.command != Command::write ? EINVAL : 0;
}

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
      if ((flags & ~unsigned{kDf}) != 0 || (flags != 0 && agreement_.framing == Framing::simple))
        return EINVAL;
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
      if (request.buffer.size != 0) return EAGAIN;  // of a filter; the least buffer has room
      return requests_.take_buffer(request, kExtentRoom) ? EAGAIN : ENOMEM;
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
    return 0;
  }
  if (request.rest == 0) request.rest = request.length;
  const Piece piece = piece_of(request);
  request.transfer.offset = piece.offset;
  request.transfer.length = piece.length;
  if (zeroes) {
    request.transfer.operation = IoOperation::write_zeroes;
    request.transfer.no_unmap = (flags & kNoHole) != 0;
    request.transfer.fast = (flags & kFastZero) != 0;
  } else {
    request.transfer.operation = IoOperation::discard;
  }
  return 0;
}

Piece first_piece(const DeviceGeometry& geometry, std::uint64_t offset, std::uint64_t length) {
  std::uint64_t border = offset - offset % kMaxPiece;
  std::uint64_t end = border;
  while (end <= offset) {
    border += kMaxPiece;
    end = border - std::min(border, geometry.past_granule(border));
  }
  return {offset, std::min(length, end - offset)};
}

Piece Commands::piece_of(const Request& request) const {
  const std::uint64_t offset = request.offset + (request.length - request.rest);
  return first_piece(agreement_.device->geometry(), offset, request.rest);
}

bool Commands::next_piece(Request& request) const {
  request.rest -= piece_of(request).length;
  return request.rest != 0;
}

int Commands::call(Request& request, const Interrupt& interrupt) {
  Disk& device = *agreement_.device;
  const bool fua = (request.flags & kFua) != 0;
  const Piece piece = piece_of(request);
  switch (request.command) {
    case Command::read:
      return device.read(request.offset, {request.payload(), request.length}, interrupt);
    case Command::write:
      return device.write(request.offset, {request.payload(), request.length}, fua, interrupt);
    case Command::flush:
      return device.flush(interrupt);
    case Command::trim:
      return device.discard(piece.offset, piece.length, fua, interrupt);
    case Command::write_zeroes:
      return device.write_zeroes(piece.offset, piece.length,
                                 {.fua = fua,
                                  .may_unmap = (request.flags & kNoHole) == 0,
                                  .fast = (request.flags & kFastZero) != 0},
                                 interrupt);
    case Command::cache:
      return read_ahead(request, interrupt);
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
  const std::uint64_t asked = std::min(request.length, kMaxQuestion);
  if (int error = agreement_.device->extents(request.offset, asked, most, runs, interrupt)) {
    return error;
  }
  request.extents = 0;
  for (const auto& run : runs) {
    const std::uint32_t told = run.flags;
    const std::uint32_t flags = ((told & rnbd::wire::kExtentHole) != 0 ? kStateHole : 0) |
                                ((told & rnbd::wire::kExtentZero) != 0 ? kStateZero : 0);
    if (agreement_.framing == Framing::extended) {
      put_extent<ExtendedStatusExtent>(request, run.length, flags);
    } else {
      put_extent<StatusExtent>(request, run.length, flags);
    }
  }
  return 0;
}

int Commands::read_ahead(const Request& request, const Interrupt& interrupt) {
  if (!inside(request)) return EINVAL;
  std::uint64_t done = 0;
  do {
    if (interrupt()) return EINTR;  // the device asks only while one piece takes long
    const std::uint64_t piece = std::min(request.length - done, kMaxReadAhead);
    if (int error = agreement_.device->cache(request.offset + done, piece, interrupt)) return error;
    done += piece;
  } while (done < request.length);
  return 0;
}

}  // namespace rnbd::nbd
