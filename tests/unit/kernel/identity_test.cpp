// SPDX-License-Identifier: BSD-3-Clause
// Which device of the kernel belongs to a mapping.
#include "bridge/kernel/identity.hpp"

#include <doctest/doctest.h>

#include <string>

namespace rnbd::kernel {
namespace {

const Identity kByUuid{.disk = "0123-45", .size = 0, .name = "one"};
const Identity kByPlace{.disk = "rnbd://storage:1234/dev/sdb", .size = 4096, .name = "one"};

TEST_CASE("an identifier has the disk and the mapping's name") {
  CHECK(text_of(kByUuid) == "rnbd:0123-45:one");
  CHECK(text_of(kByPlace) == "rnbd:rnbd://storage:1234/dev/sdb/4096:one");
}

TEST_CASE("its own device is known again, however it was named") {
  CHECK(kinship(kByUuid, "rnbd:0123-45:one") == Kinship::same);
  CHECK(kinship(kByPlace, text_of(kByPlace)) == Kinship::same);
}

TEST_CASE("a disk without UUID may have grown, but not shrunk") {
  CHECK(kinship(kByPlace, "rnbd:rnbd://storage:1234/dev/sdb/2048:one") == Kinship::same);
  CHECK(kinship(kByPlace, "rnbd:rnbd://storage:1234/dev/sdb/8192:one") == Kinship::other);
}

TEST_CASE("another disk under the same name is told from a stranger") {
  CHECK(kinship(kByUuid, "rnbd:0123-46:one") == Kinship::other);
  CHECK(kinship(kByUuid, "rnbd:0123-45/7:one") == Kinship::other);
  CHECK(kinship(kByPlace, "rnbd:rnbd://storage:1234/dev/sdc/4096:one") == Kinship::other);
  CHECK(kinship(kByPlace, "rnbd:rnbd://storage:1234/dev/sdb/x:one") == Kinship::other);
  CHECK(kinship(kByUuid, "rnbd:0123-45:two") == Kinship::stranger);
  CHECK(kinship(kByUuid, "rnbd:0123-45:phone") == Kinship::stranger);
  CHECK(kinship(kByUuid, "qemu:0123-45:one") == Kinship::stranger);
  CHECK(kinship(kByUuid, "rnbd:one") == Kinship::stranger);
  CHECK(kinship(kByUuid, "") == Kinship::stranger);
}

TEST_CASE("names that cannot be part of a path or an identifier are refused") {
  for (const char* name : {"a", "disk0", "A-b_c.d", "0"})
    CHECK(complaint_about_map_name(name) == "");
  for (const char* name : {"", ".", "..", ".a", "a/b", "a:b", "a b", "a\n", "\xc3\xa4"}) {
    CHECK(complaint_about_map_name(name) != "");
  }
  CHECK(complaint_about_map_name(std::string(64, 'x')) == "");
  CHECK(complaint_about_map_name(std::string(65, 'x')) != "");
}

}  // namespace
}  // namespace rnbd::kernel
