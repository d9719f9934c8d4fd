// SPDX-License-Identifier: BSD-3-Clause
// The example of docs/backends.md, so that it stays true.
#include <fstream>
#include <iterator>

#include "tests/unit/backend/bench.hpp"

// example begins
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "bridge/backend/backend.hpp"
#include "bridge/backend/specification.hpp"

namespace rnbd {

namespace {

/// Writes the number of each 8-byte word into the word.
void fill(std::uint64_t offset, std::uint64_t length, std::uint64_t size, std::byte* data) {
  for (std::uint64_t at = 0; at < length; at += 8) {
    // The padding behind the end reads as zeroes.
    const std::uint64_t word = offset + at < size ? (offset + at) / 8 : 0;
    std::memcpy(data + at, &word, std::min<std::uint64_t>(8, length - at));
  }
}

class CountQueue final : public BackendQueue {
 public:
  explicit CountQueue(const BackendInfo& info) : info_{info} {}

  void submit(BackendRequest& request) override {
    int error = 0;
    switch (request.operation) {
      case BackendOperation::read:
        fill(request.offset, request.length, info_.size, request.data);
        break;
      case BackendOperation::extents:
        request.extents->push_back({request.length, /*hole=*/false, /*zero=*/false});
        break;
      case BackendOperation::flush:
      case BackendOperation::cache:
        break;
      case BackendOperation::write:
      case BackendOperation::discard:
      case BackendOperation::write_zeroes:
        error = EROFS;
        break;
    }
    request.done(request, error);  // exactly once; the request is the caller's again
  }

 private:
  const BackendInfo& info_;
};

class CountBackend final : public Backend {
 public:
  explicit CountBackend(std::uint64_t size) {
    info_.size = size;
    info_.read_only = true;
    info_.volatile_cache = false;
    info_.uuid = {0xC0, 0x87};  // the same storage every time
  }
  const BackendInfo& info() const override { return info_; }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor*) override {
    return std::make_unique<CountQueue>(info_);
  }

 private:
  BackendInfo info_;
};

}  // namespace

/// Opens `count:SIZE`. Errors: EINVAL (not a size).
tl::expected<std::unique_ptr<Backend>, Failure> open_count(const std::string& size,
                                                           const BackendOptions&) {
  const auto bytes = parse_size(size);
  if (!bytes) return bad_specification(EINVAL, "count:" + size, bytes.error().text);
  return std::make_unique<CountBackend>(*bytes);
}

}  // namespace rnbd
// example ends

namespace rnbd::test {

TEST_CASE("the example of a backend works") {
  auto backend = open_count("1M", {});
  REQUIRE(backend.has_value());
  Bench bench{std::move(*backend)};
  const Bytes data = bench.read(4096, 512);
  std::uint64_t word = 0;
  std::memcpy(&word, data.data() + 8, sizeof word);
  CHECK(word == 513);
  CHECK(bench.write(0, data) == EROFS);
  CHECK(!open_count("many", {}).has_value());
}

TEST_CASE("the example in docs/backends.md is the one that is tested") {
  const auto text_of = [](const std::string& path) {
    std::ifstream file{path};
    REQUIRE(file);
    return std::string{std::istreambuf_iterator<char>{file}, {}};
  };
  const std::string root = RNBDKIT_SOURCE_DIR;
  const std::string source = text_of(root + "/tests/unit/backend/example_test.cpp");
  const std::string begin = "// example begins\n";
  const auto from = source.find(begin) + begin.size();
  const std::string example = source.substr(from, source.find("// example ends") - from);
  CHECK(text_of(root + "/docs/backends.md").find(example) != std::string::npos);
}

}  // namespace rnbd::test
