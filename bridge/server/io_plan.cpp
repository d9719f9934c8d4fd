// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/io_plan.hpp"

#include <cerrno>

namespace rnbd {
namespace {

using wire::IoOperation;

constexpr std::uint32_t kKnownFlags =
    wire::kIoSync | wire::kIoFua | wire::kIoPreflush | wire::kIoNoUnmap;

IoPlan refuse(int error, std::uint32_t unknown_flags = 0) {
  IoPlan plan;
  plan.error = error;
  plan.unknown_flags = unknown_flags;
  return plan;
}

bool has(const wire::Io& io, std::uint32_t flag) { return (io.rw & flag) != 0; }

bool is_flush(const wire::Io& io) {
  if (io.operation() == IoOperation::flush) return true;
  return io.operation() == IoOperation::write && io.length == 0 &&
         has(io, wire::kIoFua | wire::kIoPreflush);
}

std::uint32_t unknown_flags(const wire::Io& io, IoRights rights) {
  const std::uint32_t known = kKnownFlags | (rights.extensions ? wire::kIoFast : 0U) |
                              (rights.guarded ? wire::kIoCopy : 0U);
  return io.flags() & ~known;
}

/// Linux's newer clients rely on it that servers ignore a flag which these do not know. A flag of
/// WRITE ZEROES may say what is left of the blocks, as NOUNMAP does: it is refused, and the client
/// writes zeros as data.
bool may_ignore_unknown(const wire::Io& io) { return io.operation() != IoOperation::write_zeroes; }

/// The operation and its known flags on their own.
int check_operation(const wire::Io& io, const Geometry& geometry, IoRights rights) {
  if (io.operation() > IoOperation::write_zeroes) return EOPNOTSUPP;
  if (io.operation() == IoOperation::secure_erase) return EOPNOTSUPP;
  if (is_flush(io)) {
    if (has(io, wire::kIoNoUnmap | wire::kIoFast)) return EINVAL;
    return geometry.can_flush ? 0 : EOPNOTSUPP;
  }
  const bool reads = io.operation() == IoOperation::read;
  if (!reads && (!rights.writable || geometry.read_only)) return EROFS;
  if (reads && has(io, wire::kIoFua | wire::kIoPreflush)) return EINVAL;
  const bool zeroes = io.operation() == IoOperation::write_zeroes;
  if (!zeroes && has(io, wire::kIoNoUnmap | wire::kIoFast)) return EINVAL;
  if (io.operation() == IoOperation::discard && !geometry.can_discard) return EOPNOTSUPP;
  if (zeroes && !geometry.can_write_zeroes) return EOPNOTSUPP;
  if (has(io, wire::kIoPreflush) && !geometry.can_flush) return EOPNOTSUPP;
  if (has(io, wire::kIoFua) && !geometry.honours_fua()) return EOPNOTSUPP;
  if (has(io, wire::kIoFast) && !geometry.can_fast_zero) return EOPNOTSUPP;
  return 0;
}

/// The operation against the RTRS request that carried it.
int check_payload(const wire::Io& io, bool is_read, std::size_t data_size) {
  switch (io.operation()) {
    case IoOperation::flush:
      return io.length == 0 && data_size == 0 ? 0 : EINVAL;  // either direction
    case IoOperation::read:
      return is_read && data_size == io.length ? 0 : EINVAL;
    case IoOperation::write:
      return !is_read && data_size == io.length ? 0 : EINVAL;
    case IoOperation::write_zeroes:
      if (is_read) return EINVAL;
      // Clients before Linux 5.18 send WRITE_SAME under this number, with one block of data.
      return data_size == 0 ? 0 : EOPNOTSUPP;
    default:
      return !is_read && data_size == 0 ? 0 : EINVAL;
  }
}

int check_range(const wire::Io& io, const Geometry& geometry) {
  const std::uint64_t length = io.length;
  if (length == 0 || length % wire::kSectorSize != 0) return EINVAL;
  if (io.sector > geometry.sectors) return EIO;
  const std::uint64_t offset = io.sector * wire::kSectorSize;
  if (length > geometry.end() - offset) return EIO;
  if (offset % geometry.logical_block != 0) return EINVAL;
  // Only the very end may be cut: a size that is no multiple of the block.
  if (length % geometry.logical_block != 0 && offset + length != geometry.end()) return EINVAL;
  return 0;
}

BackendOperation backend_operation(IoOperation operation) {
  switch (operation) {
    case IoOperation::read:
      return BackendOperation::read;
    case IoOperation::write:
      return BackendOperation::write;
    case IoOperation::discard:
      return BackendOperation::discard;
    case IoOperation::write_zeroes:
      return BackendOperation::write_zeroes;
    default:
      return BackendOperation::flush;
  }
}

}  // namespace

IoPlan plan_io(wire::Io io, bool is_read, std::size_t data_size, const Geometry& geometry,
               IoRights rights) {
  const std::uint32_t unknown = unknown_flags(io, rights);
  if (unknown != 0) {
    if (rights.extensions) return refuse(EOPNOTSUPP);
    if (!may_ignore_unknown(io)) return refuse(EOPNOTSUPP, unknown);
    io.rw = io.rw & ~unknown;
  }
  if (const int error = check_operation(io, geometry, rights)) return refuse(error, unknown);
  if (const int error = check_payload(io, is_read, data_size)) return refuse(error, unknown);
  IoPlan plan;
  plan.unknown_flags = unknown;
  if (is_flush(io)) return plan;
  if (const int error = check_range(io, geometry)) return refuse(error, unknown);

  plan.operation = backend_operation(io.operation());
  plan.offset = io.sector * wire::kSectorSize;
  plan.length = io.length;
  plan.flush_before = has(io, wire::kIoPreflush);
  const bool durable = has(io, wire::kIoFua) && geometry.volatile_cache;
  plan.fua = durable && geometry.can_fua;
  plan.flush_after = durable && !geometry.can_fua;
  plan.no_unmap = has(io, wire::kIoNoUnmap);
  plan.fast = has(io, wire::kIoFast);
  plan.copy = has(io, wire::kIoCopy);
  return plan;
}

}  // namespace rnbd
