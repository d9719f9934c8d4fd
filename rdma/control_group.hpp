// SPDX-License-Identifier: BSD-3-Clause
// The control group of the process, and its limits.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

namespace rtrs {

/// The folder of the process' control group. Empty: it is not to be seen. `root`: of the file
/// system.
///
/// Threads: any.
inline std::filesystem::path control_group(const std::filesystem::path& root = "/") {
  std::ifstream stream{root / "proc/self/cgroup"};
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with("0::/")) return root / "sys/fs/cgroup" / line.substr(4);
  }
  return {};
}

/// A limit or a sum of a control group. None: the file says "max", or there is no such file.
///
/// Threads: any.
inline std::optional<std::uint64_t> number_in(const std::filesystem::path& file) {
  std::ifstream stream{file};
  std::uint64_t number = 0;
  return stream >> number ? std::optional{number} : std::nullopt;
}

}  // namespace rtrs
