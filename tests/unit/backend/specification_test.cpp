// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/specification.hpp"

#include <cerrno>

#include "tests/unit/backend/bench.hpp"

namespace rnbd::test::specification_test {

TEST_CASE("sizes are bytes, or numbers with a unit of 1024") {
  CHECK(parse_size("4096") == 4096U);
  CHECK(parse_size("64K") == 65536U);
  CHECK(parse_size("64M") == 64U << 20);
  CHECK(parse_size("64MiB") == 64U << 20);
  CHECK(parse_size("64mb") == 64U << 20);
  CHECK(parse_size("1.5G") == 3U << 29);
  CHECK(parse_size("2T") == std::uint64_t{2} << 40);
  CHECK(parse_size("9223372036854775807") == 9223372036854775807U);
  for (const char* const bad : {"", "M", "64X", "64 M", "-1", "1e9", "0x10", "64Mi", "9E", "nan",
                                "18446744073709551616", "99999P"}) {
    CAPTURE(bad);
    CHECK(!parse_size(bad).has_value());
  }
}

TEST_CASE("durations have a unit, or are seconds") {
  using namespace std::chrono_literals;
  CHECK(parse_short_duration("100us") == 100us);
  CHECK(parse_short_duration("2ms") == 2ms);
  CHECK(parse_short_duration("1.5s") == 1500ms);
  CHECK(parse_short_duration("5") == 5s);
  CHECK(parse_short_duration("0.25") == 250ms);
  CHECK(parse_short_duration("3600") == 3600s);
  CHECK(parse_short_duration("5min") == 300s);
  for (const char* const bad : {"", ".", "3601", "5 s", "5m", "2h", "-1s", "100000s"}) {
    CAPTURE(bad);
    CHECK(!parse_short_duration(bad).has_value());
  }
}

TEST_CASE("wrapper options end at the first colon, and the rest is the wrapped storage") {
  const auto parsed = parse_wrapper("seed=7,read=2ms:nbd:nbd://host:10809/disk,a=b");
  REQUIRE(parsed.has_value());
  REQUIRE(parsed->options.size() == 2);
  CHECK(parsed->options[0].key == "seed");
  CHECK(parsed->options[1].value == "2ms");
  CHECK(parsed->inner == "nbd:nbd://host:10809/disk,a=b");
  CHECK(parse_wrapper(":memory:1M")->options.empty());
  CHECK(!parse_wrapper("seed=7").has_value());
  CHECK(!parse_wrapper("seed=7:").has_value());
  CHECK(!parse_wrapper("seed:memory:1M").has_value());
  CHECK(!parse_wrapper("=7:memory:1M").has_value());
}

TEST_CASE("a bad specification is answered with what to write instead") {
  const auto text_of = [](const std::string& specification) {
    const auto backend = open_backend(specification, {});
    REQUIRE(!backend.has_value());
    CHECK(backend.error().error == EINVAL);
    return backend.error().text;
  };
  CHECK(text_of("memory:lots").find("64M") != std::string::npos);
  CHECK(text_of("memory:").find("memory:") != std::string::npos);
  CHECK(text_of("null:0").find("null:1G") != std::string::npos);
  CHECK(text_of("").find("path") != std::string::npos);
  const auto unknown = open_backend("memry:64M", {});
  REQUIRE(!unknown.has_value());
  CHECK(unknown.error().error == ENOENT);
  CHECK(unknown.error().text.find("memory:SIZE") != std::string::npos);
}

}  // namespace rnbd::test::specification_test
