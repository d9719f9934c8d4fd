// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/search_directory.hpp"

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace sim {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kMostDisks = 8;

struct Directory {
  Directory() {
    std::string name = (fs::temp_directory_path() / "rnbd-sim-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) return;
    path = name;
    for (unsigned i = 0; i < kMostDisks; ++i) {
      std::ofstream{path + "/disk" + std::to_string(i)};
    }
  }
  ~Directory() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
  std::string path;
};

}  // namespace

const std::string& search_directory() {
  static const Directory directory;
  return directory.path;
}

unsigned disk_of_file(const std::string& path) {
  // The server names the file by a descriptor in /proc.
  const std::string name = fs::read_symlink(path).filename().string();
  return static_cast<unsigned>(std::stoul(name.substr(4)));
}

}  // namespace sim
