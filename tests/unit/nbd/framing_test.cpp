// SPDX-License-Identifier: BSD-3-Clause
// The headers of requests, as the NBD protocol has them.
#include "bridge/nbd/framing.hpp"

#include <doctest/doctest.h>

#include <string>

namespace framing_test {

using namespace rnbd::nbd;
using namespace std::string_literals;

namespace {

RequestHead decoded(const std::string& bytes, Framing framing) {
  REQUIRE(bytes.size() == request_size(framing));
  const auto* const start = reinterpret_cast<const std::byte*>(bytes.data());
  return framing == Framing::extended ? decode_extended(start) : decode_compact(start);
}

const std::string kCompactMagic = "\x25\x60\x95\x13"s;
const std::string kExtendedMagic = "\x21\xe4\x1c\x71"s;
const std::string kCookie = "\1\2\3\4\5\6\7\x08"s;
const std::string kOffset = "\0\0\0\1\0\0\0\0"s;

std::string compact(const std::string& flags_and_type, const std::string& length) {
  return kCompactMagic + flags_and_type + kCookie + kOffset + length;
}
std::string extended(const std::string& flags_and_type, const std::string& length) {
  return kExtendedMagic + flags_and_type + kCookie + kOffset + length;
}

}  // namespace

TEST_CASE("framing: of compact requests only writes have a payload, whatever their flags say") {
  for (const Framing framing : {Framing::simple, Framing::structured}) {
    const RequestHead write = decoded(compact("\0\1\0\1"s, "\0\0\x10\0"s), framing);
    CHECK_FALSE(write.garbage);
    CHECK(write.command == Command::write);
    CHECK(write.flags == kFua);
    CHECK(write.cookie == Cookie{1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(write.offset == std::uint64_t{1} << 32);
    CHECK(write.length == 4096);
    CHECK(write.payload == 4096);
    const RequestHead trim = decoded(compact("\0\x20\0\4"s, "\xff\xff\xff\xff"s), framing);
    CHECK(trim.command == Command::trim);
    CHECK(trim.flags == kPayloadLength);
    CHECK(trim.length == 0xffffffff);
    CHECK(trim.payload == 0);
    CHECK_FALSE(trim.announced);
  }
}

TEST_CASE("framing: extended requests have 64 bits for their length, and a flag for a payload") {
  const RequestHead zeroes =
      decoded(extended("\0\2\0\6"s, "\0\0\0\x10\0\0\0\1"s), Framing::extended);
  CHECK_FALSE(zeroes.garbage);
  CHECK(zeroes.command == Command::write_zeroes);
  CHECK(zeroes.flags == kNoHole);
  CHECK(zeroes.cookie == Cookie{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(zeroes.offset == std::uint64_t{1} << 32);
  CHECK(zeroes.length == (std::uint64_t{64} << 30) + 1);
  CHECK(zeroes.payload == 0);
  CHECK_FALSE(zeroes.announced);
  const std::string four_kib = "\0\0\0\0\0\0\x10\0"s;
  const RequestHead write = decoded(extended("\0\x21\0\1"s, four_kib), Framing::extended);
  CHECK(write.flags == kFua);
  CHECK(write.announced);
  CHECK(write.payload == 4096);
  const RequestHead bare = decoded(extended("\0\0\0\1"s, four_kib), Framing::extended);
  CHECK_FALSE(bare.announced);
  CHECK(bare.payload == 4096);
  const RequestHead read = decoded(extended("\0\x20\0\0"s, four_kib), Framing::extended);
  CHECK(read.announced);
  CHECK(read.payload == 4096);
}

TEST_CASE("framing: each has its magic") {
  const std::string end = "\0\0\0\0"s + kCookie + kOffset + "\0\0\0\0"s;
  CHECK(decoded(kExtendedMagic + end, Framing::structured).garbage);
  CHECK(decoded(kCompactMagic + end + "\0\0\0\0"s, Framing::extended).garbage);
  CHECK(decoded("\0\0\0\0"s + end, Framing::simple).garbage);
}

TEST_CASE("framing: a filter names the only context, once") {
  const auto length = [](const std::string& payload) {
    return decode_filter(reinterpret_cast<const std::byte*>(payload.data()), payload.size());
  };
  const std::string large = "\0\0\0\x10\0\0\0\0"s;
  const std::string id = "\0\0\0\1"s;
  CHECK(length(large + id) == std::uint64_t{64} << 30);
  CHECK_FALSE(length(large + "\0\0\0\2"s));
  CHECK_FALSE(length(large));
  CHECK_FALSE(length(large + id + id));
  CHECK_FALSE(length(large + id + "\0"s));
  CHECK_FALSE(length(id));
}

}  // namespace framing_test
