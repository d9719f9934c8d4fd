// SPDX-License-Identifier: BSD-3-Clause
#include <doctest/doctest.h>

#include "bridge/nbd/handshake_socket.hpp"

namespace option_reader_test {

using namespace rnbd::nbd;
using namespace std::string_literals;

TEST_CASE("options: strings and numbers in their order, and nothing more") {
  const std::string data = "\0\0\0\5disk0\0\2\0\1\0\3"s;
  OptionReader reader{data};
  CHECK(reader.take_string() == "disk0");
  CHECK(reader.take<big_uint16_t>() == 2);
  CHECK(reader.left() == 4);
  CHECK_FALSE(reader.complete());
  CHECK(reader.take<big_uint32_t>() == 0x10003);
  CHECK(reader.complete());
}

TEST_CASE("options: what contradicts itself is noticed and stays noticed") {
  for (const std::string& data :
       {""s, "\0\0\0"s, "\0\0\0\1"s, "\0\0\0\6disk0"s, "\xff\xff\xff\xffx"s}) {
    OptionReader reader{data};
    CHECK(reader.take_string().empty());
    CHECK_FALSE(reader.good());
    CHECK(reader.take_string().empty());
    CHECK_FALSE(reader.complete());
  }
  const std::string longest = "\0\0\x10\0"s + std::string(4096, 'n');
  CHECK(OptionReader{longest}.take_string().size() == 4096);
  const std::string longer = "\0\0\x10\1"s + std::string(4097, 'n');
  OptionReader reader{longer};
  CHECK(reader.take_string().empty());
  CHECK_FALSE(reader.good());
}

}  // namespace option_reader_test
