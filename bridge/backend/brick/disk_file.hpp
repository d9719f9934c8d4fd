// SPDX-License-Identifier: BSD-3-Clause
// A file or block device as a part of a brick.
#pragma once

#include <mutex>
#include <tl/expected.hpp>

#include "bridge/backend/brick/part_file.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd::brick {

/// Threads: any.
class DiskFile final : public PartFile {
 public:
  explicit DiskFile(rtrs::OwnedFd fd) : fd_{std::move(fd)} {}

  std::uint64_t size() const override;
  std::uint64_t room() const override;
  int read(std::uint64_t offset, std::span<std::byte> bytes) override;
  int write(std::uint64_t offset, std::span<const std::byte> bytes) override;
  int sync() override;
  /// True if a byte is not zero. Reads everything but holes, until there is such a byte.
  ///
  /// Errors: a positive errno.
  tl::expected<bool, int> has_data();

 private:
  rtrs::OwnedFd fd_;
  std::mutex mutex_;
  int lost_ = 0;  ///< the errno of a sync
};

}  // namespace rnbd::brick
