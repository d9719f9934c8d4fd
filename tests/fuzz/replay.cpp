// SPDX-License-Identifier: BSD-3-Clause
// Runs a fuzz target over stored inputs, for builds without libFuzzer.
//
// Usage: fuzz_NAME FILE-OR-DIRECTORY...
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.hpp"

namespace {

namespace fs = std::filesystem;

bool replay(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  if (!stream) {
    std::fprintf(stderr, "%s: cannot be read\n", file.c_str());
    return false;
  }
  const std::vector<char> text{std::istreambuf_iterator<char>(stream), {}};
  // A heap block of exactly this size, so that a sanitizer sees the first byte read beyond it.
  std::vector<std::uint8_t> bytes(text.begin(), text.end());
  std::printf("%s (%zu bytes)\n", file.c_str(), bytes.size());
  std::fflush(stdout);  // the last line names the culprit when a property stops the program
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<fs::path> files;
  for (int i = 1; i < argc; ++i) {
    if (!fs::is_directory(argv[i])) {
      files.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s FILE-OR-DIRECTORY... (no input was found)\n", argv[0]);
    return 2;
  }
  for (const auto& file : files) {
    if (!replay(file)) return 1;
  }
  std::printf("%zu inputs replayed\n", files.size());
  return 0;
}
