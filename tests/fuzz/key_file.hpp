// SPDX-License-Identifier: BSD-3-Clause
// A file with a shared key, for targets whose server has one.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "rdma/tls.hpp"
#include "tests/fuzz/fuzz.hpp"

namespace fuzz {

/// The key of `host1`. The file is there until the program ends.
inline rtrs::TlsKeys key_of_host1() {
  static const std::string path = [] {
    std::string name = std::filesystem::temp_directory_path() / "fuzz-keys-XXXXXX";
    const int fd = mkstemp(name.data());  // 0600
    require(fd >= 0, "a file of keys was made");
    std::ofstream{name} << "host1:" << std::string(64, '7') << '\n';
    ::close(fd);
    return name;
  }();
  static const int removed = std::atexit([] { std::filesystem::remove(path); });
  require(removed == 0, "it will be removed");
  return {.psk = path, .certificates = "", .username = "", .verify_peer = true};
}

}  // namespace fuzz
