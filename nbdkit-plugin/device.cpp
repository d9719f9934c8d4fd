// SPDX-License-Identifier: BSD-3-Clause
// An open device as nbdkit sees it: thin callbacks around rnbd::Disk.
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bridge/client/disk.hpp"
#include "bridge/client/geometry.hpp"
#include "bridge/protocol/nbd_errors.hpp"
#include "nbdkit-plugin/state.hpp"

namespace rnbd::plugin {
namespace {

Disk& device_of(void* handle) { return *static_cast<Disk*>(handle); }

void* on_open(int readonly) {
  return guarded<void*>(nullptr, [&]() -> void* {
    const char* name = nbdkit_export_name();
    if (name == nullptr) return nullptr;
    auto device = state->connections->open(name, readonly != 0, kLeave);
    if (device) return *device;
    report(device.error());
    return nullptr;
  });
}

void on_close(void* handle) {
  guarded(0, [&] {
    state->connections->close(static_cast<Disk*>(handle));
    return 0;
  });
}

const char* on_export_description(void* handle) {
  return guarded<const char*>(nullptr, [&] {
    const std::string text = state->connections->describe(device_of(handle));
    return nbdkit_strdup_intern(text.c_str());
  });
}

// ---- What the device is and can -----------------------------------------------------------------

const DeviceGeometry& geometry_of(void* handle) { return device_of(handle).geometry(); }

int64_t on_get_size(void* handle) { return static_cast<int64_t>(geometry_of(handle).size); }

int on_block_size(void* handle, uint32_t* minimum, uint32_t* preferred, uint32_t* maximum) {
  const BlockSizes sizes = block_sizes(geometry_of(handle));
  *minimum = sizes.minimum;
  *preferred = sizes.preferred;
  *maximum = sizes.maximum;
  return 0;
}

int on_can_write(void* handle) { return device_of(handle).read_only() ? 0 : 1; }
int on_can_flush(void* handle) { return geometry_of(handle).can_flush ? 1 : 0; }
int on_is_rotational(void* handle) { return geometry_of(handle).rotational ? 1 : 0; }
int on_can_zero(void* /*handle*/) { return 1; }  // by writing zeroes, if there is nothing better
int on_can_fast_zero(void* handle) { return geometry_of(handle).fast_zero ? 1 : 0; }
int on_can_extents(void* handle) { return geometry_of(handle).extents ? 1 : 0; }
int on_can_trim(void* handle) { return geometry_of(handle).max_discard != 0 ? 1 : 0; }

int on_can_fua(void* handle) {
  if (!geometry_of(handle).can_fua) return NBDKIT_FUA_NONE;
  return geometry_of(handle).native_fua ? NBDKIT_FUA_NATIVE : NBDKIT_FUA_EMULATE;
}

int on_can_cache(void* handle) {
  return geometry_of(handle).cache ? NBDKIT_CACHE_NATIVE : NBDKIT_CACHE_NONE;
}

int on_can_multi_conn(void* handle) {
  // In migration mode another host may write as well.
  const bool alone = state->config.access != wire::AccessMode::migration;
  return alone && geometry_of(handle).flush_covers_all ? 1 : 0;
}

// ---- I/O ----------------------------------------------------------------------------------------

/// nbdkit 1.32 aborts when the replies of two threads to a client that has gone fail at the same
/// time; after the first failure it sends no more. So those that gave up go back one by one.
void return_one_by_one() {
  constexpr std::chrono::milliseconds kTimeToFail{5};
  static std::mutex single_file;
  const std::lock_guard lock{single_file};
  std::this_thread::sleep_for(kTimeToFail);
}

/// Runs one request and reports its error.
template <class Body>
int request(const char* what, uint64_t offset, uint64_t count, Body body) noexcept {
  return guarded(-1, [&] {
    const int error = body();
    if (rnbd_debug_io != 0) {
      nbdkit_debug("%s: offset=%llu count=%llu: %s", what, static_cast<unsigned long long>(offset),
                   static_cast<unsigned long long>(count),
                   error == 0 ? "done" : describe_error(error));
    }
    if (error == 0) return 0;
    if (error == EINTR) return_one_by_one();
    if (error == EINTR || error == EOPNOTSUPP) {  // nbdkit has said why; an answer, not a failure
      nbdkit_set_error(errno_for_nbd(error));
    } else {
      report({error, std::string{what} + " of " + std::to_string(count) + " bytes at " +
                         std::to_string(offset) + ": " + describe_error(error)});
    }
    return -1;
  });
}

int on_pread(void* handle, void* buffer, uint32_t count, uint64_t offset, uint32_t /*flags*/) {
  return request("read", offset, count, [&] {
    return device_of(handle).read(offset, {static_cast<std::byte*>(buffer), count}, kLeave);
  });
}

int on_pwrite(void* handle, const void* buffer, uint32_t count, uint64_t offset, uint32_t flags) {
  return request("write", offset, count, [&] {
    return device_of(handle).write(offset, {static_cast<const std::byte*>(buffer), count},
                                   (flags & NBDKIT_FLAG_FUA) != 0, kLeave);
  });
}

int on_flush(void* handle, uint32_t /*flags*/) {
  return request("flush", 0, 0, [&] { return device_of(handle).flush(kLeave); });
}

int on_trim(void* handle, uint32_t count, uint64_t offset, uint32_t flags) {
  return request("trim", offset, count, [&] {
    return device_of(handle).discard(offset, count, (flags & NBDKIT_FLAG_FUA) != 0, kLeave);
  });
}

int on_zero(void* handle, uint32_t count, uint64_t offset, uint32_t flags) {
  return request("zero", offset, count, [&] {
    const ZeroOptions options{.fua = (flags & NBDKIT_FLAG_FUA) != 0,
                              .may_unmap = (flags & NBDKIT_FLAG_MAY_TRIM) != 0,
                              .fast = (flags & NBDKIT_FLAG_FAST_ZERO) != 0};
    return device_of(handle).write_zeroes(offset, count, options, kLeave);
  });
}

int on_extents(void* handle, uint32_t count, uint64_t offset, uint32_t flags,
               nbdkit_extents* extents) {
  constexpr std::size_t kMany = 256;
  return request("extents", offset, count, [&] {
    std::vector<wire::Extent> runs;
    const std::size_t most = (flags & NBDKIT_FLAG_REQ_ONE) != 0 ? 1 : kMany;
    if (int error = device_of(handle).extents(offset, count, most, runs, kLeave)) return error;
    uint64_t at = offset;
    for (const auto& run : runs) {
      uint32_t type = 0;
      if ((run.flags & wire::kExtentHole) != 0) type |= NBDKIT_EXTENT_HOLE;
      if ((run.flags & wire::kExtentZero) != 0) type |= NBDKIT_EXTENT_ZERO;
      if (nbdkit_add_extent(extents, at, run.length, type) != 0) return errno != 0 ? errno : EIO;
      at += run.length;
    }
    return 0;
  });
}

int on_cache(void* handle, uint32_t count, uint64_t offset, uint32_t /*flags*/) {
  return request("cache", offset, count,
                 [&] { return device_of(handle).cache(offset, count, kLeave); });
}

}  // namespace

nbdkit_plugin device_callbacks() {
  nbdkit_plugin table{};
  table.open = on_open;
  table.close = on_close;
  table.export_description = on_export_description;
  table.get_size = on_get_size;
  table.block_size = on_block_size;
  table.is_rotational = on_is_rotational;
  table.can_write = on_can_write;
  table.can_flush = on_can_flush;
  table.can_fua = on_can_fua;
  table.can_trim = on_can_trim;
  table.can_zero = on_can_zero;
  table.can_fast_zero = on_can_fast_zero;
  table.can_extents = on_can_extents;
  table.can_cache = on_can_cache;
  table.can_multi_conn = on_can_multi_conn;
  table.pread = on_pread;
  table.pwrite = on_pwrite;
  table.flush = on_flush;
  table.trim = on_trim;
  table.zero = on_zero;
  table.extents = on_extents;
  table.cache = on_cache;
  table.errno_is_preserved = 1;
  return table;
}

}  // namespace rnbd::plugin
