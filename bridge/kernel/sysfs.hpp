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

#include "rdma/client.hpp"

namespace rnbd::kernel {

/// A device that is connected, or still open since it was.
struct Mapped {
  unsigned index = 0;
  std::string backend;  ///< the identifier it was connected with
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

  /// All that have an identifier.
  std::vector<Mapped> mapped() const;
  /// "" if it has none: nothing is mapped there.
  std::string backend(unsigned index) const;
  /// A descriptor that tells others that this process serves the device, for as long as it is open.
  /// -1 and errno; EWOULDBLOCK: another process does.
  int lock(unsigned index) const;
  /// Bytes.
  std::uint64_t size(unsigned index) const;
  bool read_only(unsigned index) const;
  Flow flow(unsigned index) const;
  /// Only right after the device was connected: it freezes the queue, for ever if requests hang.
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
