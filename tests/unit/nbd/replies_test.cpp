// The bytes of replies, as the NBD protocol has them.
#include "bridge/nbd/replies.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <string>

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

Request answered(Command command, int error, bool structured) {
  Request request;
  request.command = command;
  request.error = error;
  request.cookie = {1, 2, 3, 4, 5, 6, 7, 8};
  request.offset = 0x1122334455667788;
  request.length = 4096;
  request.extents = 2;
  make_reply(request, structured);
  return request;
}

}  // namespace

TEST_CASE("replies: simple ones") {
  const Request read = answered(Command::read, 0, false);
  CHECK(hex(read) == "67446698000000000102030405060708");
  CHECK(read.payload_size == 4096);
  const Request failed = answered(Command::read, EIO, false);
  CHECK(hex(failed) == "67446698000000050102030405060708");
  CHECK(failed.payload_size == 0);
  const Request write = answered(Command::write, 0, true);
  CHECK(hex(write) == "67446698000000000102030405060708");
  CHECK(write.payload_size == 0);
}

TEST_CASE("replies: structured ones") {
  const Request read = answered(Command::read, 0, true);
  CHECK(hex(read) ==
        "668e33ef"
        "00010001"
        "0102030405060708"
        "00001008"
        "1122334455667788");
  CHECK(read.payload_size == 4096);
  const Request failed = answered(Command::read, EROFS, true);
  CHECK(hex(failed) ==
        "668e33ef"
        "00018001"
        "0102030405060708"
        "00000006"
        "000000010000");
  CHECK(failed.payload_size == 0);
  const Request status = answered(Command::block_status, 0, true);
  CHECK(hex(status) ==
        "668e33ef"
        "00010005"
        "0102030405060708"
        "00000014"
        "00000001");
  CHECK(status.payload_size == 16);
}
