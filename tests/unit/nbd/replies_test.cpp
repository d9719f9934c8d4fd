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
  Answered(Command asked, int errno_of_it, Framing framing) {
    command = asked;
    error = errno_of_it;
    cookie = {1, 2, 3, 4, 5, 6, 7, 8};
    offset = 0x1122334455667788;
    length = 4096;
    extents = 2;
    make_reply(*this, framing);
  }
};

}  // namespace

TEST_CASE("replies: simple ones") {
  const Answered read{Command::read, 0, Framing::simple};
  CHECK(hex(read) == "67446698000000000102030405060708");
  CHECK(read.payload_size == 4096);
  const Answered failed{Command::read, EIO, Framing::simple};
  CHECK(hex(failed) == "67446698000000050102030405060708");
  CHECK(failed.payload_size == 0);
  const Answered write{Command::write, 0, Framing::structured};
  CHECK(hex(write) == "67446698000000000102030405060708");
  CHECK(write.payload_size == 0);
}

TEST_CASE("replies: structured ones") {
  const Answered read{Command::read, 0, Framing::structured};
  CHECK(hex(read) ==
        "668e33ef"
        "00010001"
        "0102030405060708"
        "00001008"
        "1122334455667788");
  CHECK(read.payload_size == 4096);
  const Answered failed{Command::read, EROFS, Framing::structured};
  CHECK(hex(failed) ==
        "668e33ef"
        "00018001"
        "0102030405060708"
        "00000006"
        "000000010000");
  CHECK(failed.payload_size == 0);
  const Answered status{Command::block_status, 0, Framing::structured};
  CHECK(hex(status) ==
        "668e33ef"
        "00010005"
        "0102030405060708"
        "00000014"
        "00000001");
  CHECK(status.payload_size == 16);
}

TEST_CASE("replies: extended ones, which are never simple") {
  const Answered read{Command::read, 0, Framing::extended};
  CHECK(hex(read) ==
        "6e8a278c"
        "00010001"
        "0102030405060708"
        "1122334455667788"
        "0000000000001008"
        "1122334455667788");
  CHECK(read.payload_size == 4096);
  const Answered write{Command::write, 0, Framing::extended};
  CHECK(hex(write) ==
        "6e8a278c"
        "00010000"
        "0102030405060708"
        "1122334455667788"
        "0000000000000000");
  CHECK(write.payload_size == 0);
  const Answered failed{Command::block_status, ENOSPC, Framing::extended};
  CHECK(hex(failed) ==
        "6e8a278c"
        "00018001"
        "0102030405060708"
        "1122334455667788"
        "0000000000000006"
        "0000001c0000");
  CHECK(failed.payload_size == 0);
  const Answered status{Command::block_status, 0, Framing::extended};
  CHECK(hex(status) ==
        "6e8a278c"
        "00010006"
        "0102030405060708"
        "1122334455667788"
        "0000000000000028"
        "00000001"
        "00000002");
  CHECK(status.payload_size == 32);
}

}  // namespace replies_test
