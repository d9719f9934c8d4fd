// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/output.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

namespace rnbd::output_test {
namespace {

std::string shown(const char* json) { return readable(nlohmann::ordered_json::parse(json)); }

TEST_CASE("values are lines, and lists of objects are tables with a column for each name") {
  CHECK(shown(R"({"session":"web1","up":true,"depth":256,"trouble":"","gone":null,
                  "paths":[{"address":"tcp:a:1","in_use":true},
                           {"address":"b","in_use":false,"trouble":"cut"}]})") ==
        "session:  web1\n"
        "up:       yes\n"
        "depth:    256\n"
        "trouble:  -\n"
        "gone:     -\n"
        "\n"
        "ADDRESS  IN-USE  TROUBLE\n"
        "tcp:a:1  yes     -\n"
        "b        no      cut\n");
}

TEST_CASE("an empty answer says nothing, and so does an empty list") {
  CHECK(shown("{}").empty());
  CHECK(shown(R"({"devices":[]})").empty());
}

TEST_CASE("nothing of an answer moves the cursor") {
  CHECK(shown(R"({"name":"a\u001b[2Jb\nc"})") == "name:  a?[2Jb?c\n");
  CHECK(shown(R"({"name":"a\u009b2Jb\u007fö"})") == "name:  a??2Jb?ö\n");
}

TEST_CASE("ctl view: progress is a bar") {
  CHECK(shown(R"({"members":[{"progress_percent":42},{"progress_percent":null}]})") ==
        "PROGRESS-PERCENT\n[########------------] 42 %\n-\n");
}

}  // namespace
}  // namespace rnbd::output_test
