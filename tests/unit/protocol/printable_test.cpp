// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/printable.hpp"

#include <doctest/doctest.h>

namespace rnbd {
namespace {

TEST_CASE("a quoted name shows what people write, in all their languages") {
  CHECK(quoted("disk0") == "'disk0'");
  CHECK(quoted("größe/диск/磁盘/💾") == "'größe/диск/磁盘/💾'");
  CHECK(quoted("") == "''");
}

TEST_CASE("a quoted name has no control characters, neither those of ASCII nor the others") {
  CHECK(quoted("a'b\\\x7F\n\x1B") == "'a\\x27b\\x5c\\x7f\\x0a\\x1b'");
  CHECK(quoted("\xC2\x80 \xC2\x9B \xC2\x9F \xC2\xA0") ==
        "'\\xc2\\x80 \\xc2\\x9b \\xc2\\x9f \xC2\xA0'");
}

TEST_CASE("a quoted name cannot change the order in which others are shown, nor end the line") {
  // U+200E, U+202E, U+2066, U+2069, U+061C, U+2028; U+200D joins, in names of people too.
  CHECK(quoted("\u200E\u202E\u2066\u2069") ==
        "'\\xe2\\x80\\x8e\\xe2\\x80\\xae\\xe2\\x81\\xa6\\xe2\\x81\\xa9'");
  CHECK(quoted("\u061C\u2028") == "'\\xd8\\x9c\\xe2\\x80\\xa8'");
  CHECK(quoted("a\u200Db") == "'a\u200Db'");
}

TEST_CASE("a message stays on its line, and its own quotes stay as they are") {
  CHECK(on_one_line("'a' \\ \x1B[2J\nforged: \u202E") ==
        "'a' \\ \\x1b[2J\\x0aforged: \\xe2\\x80\\xae");
}

TEST_CASE("a quoted name is valid UTF-8, whatever bytes it was made of") {
  CHECK(quoted("\x9B"
               "2J") == "'\\x9b2J'");
  CHECK(quoted("gr\xF6\xDF"
               "e") == "'gr\\xf6\\xdfe'");
  CHECK(quoted("\xE7\xA3") == "'\\xe7\\xa3'");  // the end is missing
  CHECK(quoted("\xE7x") == "'\\xe7x'");
  CHECK(quoted("\xC0\x8A") == "'\\xc0\\x8a'");  // a newline, too long
  CHECK(quoted("\xC1\xBF") == "'\\xc1\\xbf'");
  CHECK(quoted("\xE0\x82\x9B") == "'\\xe0\\x82\\x9b'");  // U+009B, too long
  CHECK(quoted("\xF0\x80\x82\x9B") == "'\\xf0\\x80\\x82\\x9b'");
  CHECK(quoted("\xED\xA0\x80") == "'\\xed\\xa0\\x80'");           // half of a pair
  CHECK(quoted("\xF4\x90\x80\x80") == "'\\xf4\\x90\\x80\\x80'");  // beyond the last character
  CHECK(quoted("\xF5\x80\x80\x80\xFF") == "'\\xf5\\x80\\x80\\x80\\xff'");
}

}  // namespace
}  // namespace rnbd
