// SPDX-License-Identifier: BSD-3-Clause
// The content of blocks, by which every read can be checked: a block's own offset, throughout.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/bench/nbd_client.hpp"

namespace nbdload {

constexpr std::size_t kStampEvery = 4096;  ///< bytes of a block

/// Fills whole blocks; fio can check them, too (`--verify_pattern=%o`).
inline void stamp(char* data, std::uint64_t offset, std::size_t length) {
  for (std::size_t at = 0; at < length; at += kStampEvery) {
    std::uint64_t value = offset + at;
    for (std::size_t word = 0; word < kStampEvery; word += sizeof value) {
      std::memcpy(data + at + word, &value, sizeof value);
    }
  }
}

/// Whether these are the blocks of that offset, by both ends of each: cheaply.
inline bool stamped(const char* data, std::uint64_t offset, std::size_t length) {
  for (std::size_t at = 0; at < length; at += kStampEvery) {
    std::uint64_t first, last;
    std::memcpy(&first, data + at, sizeof first);
    std::memcpy(&last, data + at + kStampEvery - sizeof last, sizeof last);
    if (first != offset + at || last != offset + at) return false;
  }
  return true;
}

/// Makes a file of stamped blocks.
inline void write_stamps(const std::string& path, std::uint64_t size) {
  int fd = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) die(path);
  std::vector<char> chunk(1 << 20, 'x');
  for (std::uint64_t offset = 0; offset < size; offset += chunk.size()) {
    auto length = static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size(), size - offset));
    stamp(chunk.data(), offset, length);
    if (::write(fd, chunk.data(), length) != static_cast<ssize_t>(length)) die(path);
  }
  ::close(fd);
}

}  // namespace nbdload
