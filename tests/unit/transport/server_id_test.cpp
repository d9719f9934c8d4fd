// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/server_id.hpp"

#include <doctest/doctest.h>

namespace rtrs::server_id_test {
namespace {

TEST_CASE("the identity of a server is written with 16 digits and read so") {
  CHECK(server_id_text(0xAB12) == "000000000000ab12");
  CHECK(parse_server_id("000000000000ab12") == ServerId{0xAB12});
  CHECK(parse_server_id("FEDCBA9876543210") == ServerId{0xFEDC'BA98'7654'3210});
  for (const char* bad : {"", "ab12", "0000000000000000", "00000000000ab12g", "0x0000000000ab12",
                          "000000000000ab120", "-00000000000ab12"}) {
    CHECK_MESSAGE(!parse_server_id(bad), bad);
  }
}

}  // namespace
}  // namespace rtrs::server_id_test
