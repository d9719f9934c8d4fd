// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/printable.hpp"

#include <doctest/doctest.h>

namespace rnbd::printable_test {
namespace {

TEST_CASE("a quoted name shows what people write, in all their languages") {
  CHECK(in_quotes("disk0") == "'disk0'");
  CHECK(in_quotes("größe/диск/磁盘/💾") == "'größe/диск/磁盘/💾'");
  CHECK(in_quotes("") == "''");
}

TEST_CASE("a quoted name has no control characters, neither those of ASCII nor the others") {
  CHECK(in_quotes("a'b\\\x7F\n\x1B") == "'a\\x27b\\x5c\\x7f\\x0a\\x1b'");
  CHECK(in_quotes("\xC2\x80 \xC2\x9B \xC2\x9F \xC2\xA0") ==
        "'\\xc2\\x80 \\xc2\\x9b \\xc2\\x9f \xC2\xA0'");
}

TEST_CASE("a quoted name cannot change the order in which others are shown, nor end the line") {
  // U+200E, U+202E, U+2066, U+2069, U+061C, U+2028; U+200D joins, in names of people too.
  CHECK(in_quotes("\u200E\u202E\u2066\u2069") ==
        "'\\xe2\\x80\\x8e\\xe2\\x80\\xae\\xe2\\x81\\xa6\\xe2\\x81\\xa9'");
  CHECK(in_quotes("\u061C\u2028") == "'\\xd8\\x9c\\xe2\\x80\\xa8'");
  CHECK(in_quotes("a\u200Db") == "'a\u200Db'");
}

TEST_CASE("a message stays on its line, and its own quotes stay as they are") {
  CHECK(on_one_line("'a' \\ \x1B[2J\nforged: \u202E") ==
        "'a' \\ \\x1b[2J\\x0aforged: \\xe2\\x80\\xae");
}

TEST_CASE("a readable text has a '?' for each byte that could move the cursor") {
  CHECK(readable_text("gr\u00F6\u00DFe \x1B[2J\n\x9B") == "gr\u00F6\u00DFe ?[2J??");
  CHECK(readable_text("").empty());
}

TEST_CASE("lines stay lines, and nothing in them moves the cursor") {
  CHECK(readable_lines("one\x1B[2J\ntwo\t\u009B\n\nthree") == "one?[2J\ntwo???\n\nthree");
  CHECK(readable_lines("").empty());
}

TEST_CASE("JSON stays the same JSON, and nothing in it moves the cursor") {
  CHECK(readable_json("{\"gr\u00F6\u00DFe\":\t\"\u009B2J\u202E\x7F\"}\n") ==
        "{\"gr\u00F6\u00DFe\": \"\\u009b2J\\u202e\\u007f\"}\n");
}

TEST_CASE("a quoted name is valid UTF-8, whatever bytes it was made of") {
  CHECK(in_quotes("\x9B"
                  "2J") == "'\\x9b2J'");
  CHECK(in_quotes("gr\xF6\xDF"
                  "e") == "'gr\\xf6\\xdfe'");
  CHECK(in_quotes("\xE7\xA3") == "'\\xe7\\xa3'");  // the end is missing
  CHECK(in_quotes("\xE7x") == "'\\xe7x'");
  CHECK(in_quotes("\xC0\x8A") == "'\\xc0\\x8a'");  // a newline, too long
  CHECK(in_quotes("\xC1\xBF") == "'\\xc1\\xbf'");
  CHECK(in_quotes("\xE0\x82\x9B") == "'\\xe0\\x82\\x9b'");  // U+009B, too long
  CHECK(in_quotes("\xF0\x80\x82\x9B") == "'\\xf0\\x80\\x82\\x9b'");
  CHECK(in_quotes("\xED\xA0\x80") == "'\\xed\\xa0\\x80'");           // half of a pair
  CHECK(in_quotes("\xF4\x90\x80\x80") == "'\\xf4\\x90\\x80\\x80'");  // beyond the last character
  CHECK(in_quotes("\xF5\x80\x80\x80\xFF") == "'\\xf5\\x80\\x80\\x80\\xff'");
}

}  // namespace
}  // namespace rnbd::printable_test
