// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/uuid.hpp"

#include <doctest/doctest.h>

namespace uuid_test {

using rnbd::parse_uuid;
using rnbd::uuid_text;
using rtrs::wire::Uuid;

TEST_CASE("a UUID is written in groups and read with them, without them, and in capitals") {
  const Uuid uuid{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
                  0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
  CHECK(uuid_text(uuid) == "01234567-89ab-cdef-1032-547698badcfe");
  CHECK(parse_uuid(uuid_text(uuid)) == uuid);
  CHECK(parse_uuid("0123456789ABCDEF1032547698BADCFE") == uuid);
}

TEST_CASE("an unknown UUID is no text, and what is no UUID is refused") {
  CHECK(uuid_text(Uuid{}).empty());
  for (const char* bad :
       {"", "01234567-89ab-cdef-1032-547698badcf", "0123", "disk0",
        "01234567-89ab-cdef-1032-547698badcfe0", "-01234567-89ab-cdef-1032-547698ba",
        "0123-4567-89ab-cdef-1032-5476-98ba-dcfe", "0x234567-89ab-cdef-1032-547698badcfe",
        "00000000-0000-0000-0000-000000000000"}) {
    CHECK_MESSAGE(!parse_uuid(bad), bad);
  }
}

}  // namespace uuid_test
