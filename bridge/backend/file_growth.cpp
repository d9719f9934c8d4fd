// How large a file or block device is while it is open.
#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <algorithm>

#include "bridge/backend/file.hpp"

namespace rnbd {
namespace {

/// Bytes; 0 when nobody knows.
std::uint64_t ask_kernel(const FileState& state) {
  if (state.block_device) {
    std::uint64_t size = 0;
    return ioctl(state.fd.get(), BLKGETSIZE64, &size) == 0 ? size : 0;
  }
  // A reactor asks, and a file on another machine must not make it wait: what is known here has to
  // do.
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

}  // namespace

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
