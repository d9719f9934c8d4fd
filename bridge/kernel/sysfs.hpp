// SPDX-License-Identifier: BSD-3-Clause
// The kernel's nbd devices as /sys/block shows them.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "rdma/failure.hpp"

namespace rnbd::kernel {

/// A device that is connected, or was and is still open.
struct Mapped {
  unsigned index = 0;
  std::string backend;  ///< the identifier from its connection
};

/// Requests of a device at one moment.
struct Flow {
  std::uint64_t ended = 0;
  std::uint64_t under_way = 0;
};

/// Threads: any.
class Sysfs {
 public:
  explicit Sysfs(std::filesystem::path root = "/sys/block") : root_{std::move(root)} {}

  /// All devices with an identifier.
  std::vector<Mapped> mapped() const;
  /// "" if it has none, because nothing is mapped there.
  std::string backend(unsigned index) const;
  /// Marks the device as served by this process, until the descriptor is closed. -1 and errno;
  /// EWOULDBLOCK: another process serves it.
  int lock(unsigned index) const;
  /// Bytes.
  std::uint64_t size(unsigned index) const;
  bool read_only(unsigned index) const;
  Flow flow(unsigned index) const;
  /// Call it only right after the device was connected. It freezes the queue, and for ever if
  /// requests hang.
  ///
  /// Errors: errno of the file.
  tl::expected<void, rtrs::Failure> set_queue(unsigned index, const std::string& attribute,
                                              const std::string& value) const;
  /// As a number; 0 = there is none.
  std::uint64_t queue(unsigned index, const std::string& attribute) const;

 private:
  std::filesystem::path device(unsigned index) const;

  std::filesystem::path root_;
};

}  // namespace rnbd::kernel
