// SPDX-License-Identifier: BSD-3-Clause
// How large a file or block device is while it is open.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "bridge/backend/file.hpp"

namespace rnbd {
namespace {

/// Bytes; 0 when it is unknown.
std::uint64_t ask_kernel(const FileState& state) {
  if (state.block_device) {
    std::uint64_t size = 0;
    return ioctl(state.fd.get(), BLKGETSIZE64, &size) == 0 ? size : 0;
  }
  // Reactors call this, and must not wait for a file on another machine. So it uses only facts that
  // are known here.
  const int flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  struct statx stat {};
  return statx(state.fd.get(), "", flags, STATX_SIZE, &stat) == 0 ? stat.stx_size : 0;
}

/// Part of a page written directly and another part through the page cache would overwrite each
/// other.
std::uint64_t page_of(const FileState& state) { return std::max(state.direct_alignment, 4096U); }

/// The end must be a multiple of it, or stays where it is.
std::uint64_t unit_of_growth(const FileState& state) {
  if (!state.direct) return 512;
  // The end of a device never needs the page cache.
  return state.block_device ? state.direct_alignment : page_of(state);
}

std::string bytes_of(std::uint64_t size) { return std::to_string(size) + " bytes"; }

bool names_no_device(int error) { return error == ENXIO || error == ENODEV || error == ENOMEDIUM; }

/// For a range behind the end of a device, the kernel returns ENOSPC to a write and EINVAL to
/// zeroing.
void tell_of_end(FileState& state, int error) {
  if (state.told_of_end.exchange(true) || !state.log) return;
  const std::uint64_t size = ask_kernel(state);
  const bool gone = state.block_device && (size == 0 || names_no_device(error));
  state.log(rtrs::LogLevel::error,
            state.path +
                (gone ? ": the device is gone; requests fail with EIO. Once it is back, let every "
                        "client disconnect and connect again"
                      : ": it has shrunk to " + bytes_of(size) + " from " + bytes_of(state.size) +
                            "; requests behind that fail with EIO"));
}

}  // namespace

Whereabouts whereabouts_of(const FileState& state) {
  if (state.block_device) return ask_kernel(state) == 0 ? Whereabouts::gone : Whereabouts::named;
  struct statx stat {};
  const int flags = AT_EMPTY_PATH | AT_STATX_DONT_SYNC;
  const bool known = statx(state.fd.get(), "", flags, STATX_NLINK, &stat) == 0;
  return known && stat.stx_nlink == 0 ? Whereabouts::unnamed : Whereabouts::named;
}

std::optional<std::uint64_t> shrunk_to(const FileState& state) {
  const std::uint64_t size = ask_kernel(state);
  return size < state.size ? std::optional{size} : std::nullopt;
}

bool is_cut(const FileState& state, std::uint64_t end) { return ask_kernel(state) < end; }

int error_told(FileState& state, const BackendRequest& request, int error) {
  const std::uint64_t end = std::min(request.offset + request.length, state.size.load());
  const bool cut = state.block_device && is_cut(state, end);
  if (!cut && !names_no_device(error)) return error;
  tell_of_end(state, error);
  return EIO;
}

void set_size(FileState& state, std::uint64_t size) {
  if (state.direct) {
    // So an odd end makes all of its page go through the page cache.
    const std::uint64_t page = page_of(state);
    state.direct_end = size % state.direct_alignment == 0 ? size : size / page * page;
  }
  state.size = size;
}

std::uint64_t present_size_of(FileState& state) {
  const std::lock_guard lock{state.growth};
  const std::uint64_t known = state.size;
  if (known % unit_of_growth(state) != 0) return known;
  const std::uint64_t size = ask_kernel(state);
  if (size <= known) return known;
  set_size(state, size);
  return size;
}

}  // namespace rnbd
