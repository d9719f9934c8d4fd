// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/brick/disk_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <vector>

namespace rnbd::brick {
namespace {

template <class Bytes, class Call>
int whole_transfer(std::uint64_t offset, Bytes bytes, Call call) {
  while (!bytes.empty()) {
    const ssize_t moved = call(bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved < 0 ? errno : EIO;
    bytes = bytes.subspan(static_cast<std::size_t>(moved));
    offset += static_cast<std::uint64_t>(moved);
  }
  return 0;
}

}  // namespace

std::uint64_t DiskFile::size() const {
  const off_t end = lseek(fd_.get(), 0, SEEK_END);
  return end < 0 ? 0 : static_cast<std::uint64_t>(end);
}

std::uint64_t DiskFile::room() const {
  struct stat found {};
  const bool grows = fstat(fd_.get(), &found) == 0 && S_ISREG(found.st_mode);
  return grows ? std::numeric_limits<std::uint64_t>::max() : size();
}

int DiskFile::read(std::uint64_t offset, std::span<std::byte> bytes) {
  return whole_transfer(offset, bytes, [&](std::byte* to, std::size_t length, off_t at) {
    return pread(fd_.get(), to, length, at);
  });
}

int DiskFile::write(std::uint64_t offset, std::span<const std::byte> bytes) {
  return whole_transfer(offset, bytes, [&](const std::byte* from, std::size_t length, off_t at) {
    return pwrite(fd_.get(), from, length, at);
  });
}

/// The kernel reports a failed write once, to the first caller, and forgets the lost data.
int DiskFile::sync() {
  const std::lock_guard lock{mutex_};
  if (lost_ == 0 && fdatasync(fd_.get()) != 0) lost_ = errno;
  return lost_;
}

tl::expected<bool, int> DiskFile::has_data() {
  std::vector<std::byte> bytes(1U << 20);
  const std::uint64_t end = size();
  for (std::uint64_t at = 0; at < end;) {
    const off_t data = lseek(fd_.get(), static_cast<off_t>(at), SEEK_DATA);
    if (data < 0 && errno == ENXIO) return false;  // holes to the end
    if (data >= 0) at = std::max(at, static_cast<std::uint64_t>(data));
    const auto part = std::span{bytes}.first(std::min<std::uint64_t>(bytes.size(), end - at));
    if (const int error = read(at, part); error != 0) return tl::unexpected(error);
    if (std::ranges::any_of(part, [](std::byte byte) { return byte != std::byte{}; })) return true;
    at += part.size();
  }
  return false;
}

}  // namespace rnbd::brick
