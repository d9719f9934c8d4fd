// SPDX-License-Identifier: BSD-3-Clause
// The bytes of replies, as the NBD protocol has them.
#include "bridge/nbd/replies.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>

namespace replies_test {

using namespace rnbd::nbd;

namespace {

std::string hex(const Request& request) {
  std::string text;
  for (std::uint32_t i = 0; i < request.header_size; ++i) {
    constexpr const char* kDigits = "0123456789abcdef";
    const auto value = std::to_integer<unsigned>(request.header[i]);
    text += kDigits[value / 16];
    text += kDigits[value % 16];
  }
  return text;
}

/// A request cannot be moved: its operation may be under way.
struct Answered : Request {
  Answered(Command asked, int errno_of_it, bool structured) {
    command = asked;
    error = errno_of_it;
    cookie = {1, 2, 3, 4, 5, 6, 7, 8};
    offset = 0x1122334455667788;
    length = 4096;
    extents = 2;
    make_reply(*this, structured);
  }
};

}  // namespace

TEST_CASE("replies: simple ones") {
  const Answered read{Command::read, 0, false};
  CHECK(hex(read) == "67446698000000000102030405060708");
  CHECK(read.payload_size == 4096);
  const Answered failed{Command::read, EIO, false};
  CHECK(hex(failed) == "67446698000000050102030405060708");
  CHECK(failed.payload_size == 0);
  const Answered write{Command::write, 0, true};
  CHECK(hex(write) == "67446698000000000102030405060708");
  CHECK(write.payload_size == 0);
}

TEST_CASE("replies: structured ones") {
  const Answered read{Command::read, 0, true};
  CHECK(hex(read) ==
        "668e33ef"
        "00010001"
        "0102030405060708"
        "00001008"
        "1122334455667788");
  CHECK(read.payload_size == 4096);
  const Answered failed{Command::read, EROFS, true};
  CHECK(hex(failed) ==
        "668e33ef"
        "00018001"
        "0102030405060708"
        "00000006"
        "000000010000");
  CHECK(failed.payload_size == 0);
  const Answered status{Command::block_status, 0, true};
  CHECK(hex(status) ==
        "668e33ef"
        "00010005"
        "0102030405060708"
        "00000014"
        "00000001");
  CHECK(status.payload_size == 16);
}

}  // namespace replies_test
