// SPDX-License-Identifier: BSD-3-Clause
// fault: and delay:, the backends that make trouble.
#include <cerrno>
#include <filesystem>

#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::trouble_test {

namespace {

/// The errors of `count` writes.
std::vector<int> errors_of_writes(const std::string& specification, unsigned count) {
  Bench bench{specification};
  std::vector<int> errors;
  for (unsigned i = 0; i < count; ++i) errors.push_back(bench.write(0, pattern(512, i)));
  return errors;
}

std::string text_of_failure(const std::string& specification) {
  const auto backend = open_backend(specification, {});
  REQUIRE(!backend.has_value());
  CHECK(backend.error().error == EINVAL);
  return backend.error().text;
}

}  // namespace

TEST_CASE("fault: without options behaves like a disk") {
  check_conformance({must_open("fault::memory:4M")});
}

TEST_CASE("fault: a request that fails does not touch the storage") {
  Bench bench{"fault:write-enospc=1,flush-eio=1:memory:1M"};
  CHECK(bench.write(0, pattern(512, 1)) == ENOSPC);
  CHECK(bench.flush() == EIO);
  CHECK(bench.read(0, 512) == Bytes(512, std::byte{0}));
  CHECK(bench.zero(0, 512, {}) == 0);
}

TEST_CASE("fault: the same seed fails the same requests, another seed others") {
  const auto seven = errors_of_writes("fault:seed=7,write-eio=0.5:memory:1M", 100);
  CHECK(seven == errors_of_writes("fault:seed=7,write-eio=0.5:memory:1M", 100));
  CHECK(seven != errors_of_writes("fault:seed=8,write-eio=0.5:memory:1M", 100));
  CHECK(errors_of_writes("fault:write-eio=0:memory:1M", 100) == std::vector<int>(100, 0));
}

TEST_CASE("fault: nth fails every nth request") {
  CHECK(errors_of_writes("fault:nth=3:memory:1M", 7) == std::vector<int>{0, 0, EIO, 0, 0, EIO, 0});
}

TEST_CASE("delay: behaves like a disk") {
  check_conformance({must_open("delay:write=20us,read=10us,jitter=50us,seed=3:memory:4M")});
}

TEST_CASE("delay: a held write lands on top of the one that overtook it, once per hold file") {
  const TemporaryFolder folder;
  const std::string flag = folder.file("hold", 0);
  Bench bench{"delay:hold-file=" + flag + ",hold=50ms:memory:1M"};
  Bytes first = pattern(512, 1);
  Bytes second = pattern(512, 2);
  const auto write_both = [&] {
    std::vector<BackendRequest> requests(2);
    for (BackendRequest& request : requests) {
      request.operation = BackendOperation::write;
      request.length = 512;
    }
    requests[0].data = first.data();
    requests[1].data = second.data();
    CHECK(bench.run(requests) == std::vector<int>{0, 0});
  };
  write_both();
  CHECK(bench.read(0, 512) == first);
  CHECK(!std::filesystem::exists(flag));
  write_both();
  CHECK(bench.read(0, 512) == second);
}

TEST_CASE("wrappers nest, and are as read-only as what they wrap") {
  Bench bench{"fault:seed=1:delay:read=1us:memory:1M", {.read_only = true}};
  CHECK(bench.info().read_only);
  CHECK(bench.write(0, pattern(512, 1)) == EROFS);
}

TEST_CASE("bad options of wrappers are answered with the good ones") {
  CHECK(text_of_failure("fault:write-eio=2:memory:1M").find("0.01") != std::string::npos);
  CHECK(text_of_failure("fault:write-boom=1:memory:1M").find("enospc") != std::string::npos);
  CHECK(text_of_failure("fault:speed=1:memory:1M").find("nth=N") != std::string::npos);
  CHECK(text_of_failure("fault:memory").find("SPEC") == std::string::npos);
  CHECK(text_of_failure("delay:write=5m:memory:1M").find("100ms") != std::string::npos);
  CHECK(text_of_failure("delay:rite=5ms:memory:1M").find("hold-file") != std::string::npos);
  CHECK(text_of_failure("delay:write=5ms:memory:many").find("64M") != std::string::npos);
}

}  // namespace rnbd::test::trouble_test
