// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/control/commands.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <nlohmann/json.hpp>

namespace rnbd::commands_test {
namespace {

using rtrs::Failure;

ControlCommands commands() {
  return ControlCommands{{
      {"where", "", "Where it is.",
       [](const std::string&) {
         return Json{{"place", "here"}, {"deep", 7}};
       }},
      {"go", "PLACE", "Goes there.",
       [](const std::string& place) -> tl::expected<Json, Failure> {
         if (place == "hell") return tl::unexpected(Failure{EPERM, "not there"});
         return Json{{"gone", place}};
       }},
      {"rest", "", "Nothing to say.", [](const std::string&) { return Json::object(); }},
  }};
}

TEST_CASE("a line is a command and its argument, with blanks wherever") {
  const ControlCommands all = commands();
  CHECK(all.answer("where") == R"({"place":"here","deep":7})");
  CHECK(all.answer("  where\t") == R"({"place":"here","deep":7})");
  CHECK(all.answer("go far away") == R"({"gone":"far away"})");
  CHECK(all.answer(" go \t far ") == R"({"gone":"far"})");
  CHECK(all.answer("rest") == "{}");
}

TEST_CASE("what cannot be done is answered with an errno and a sentence") {
  const ControlCommands all = commands();
  CHECK(all.answer("go hell") == R"({"error":"EPERM","message":"not there"})");
  CHECK(all.answer("go") == R"({"error":"EINVAL","message":"write go PLACE"})");
  for (const char* line : {"", "  ", "fly", "where now", "WHERE"}) {
    CAPTURE(line);
    const Json answer = Json::parse(all.answer(line));
    CHECK(answer["error"] == "EINVAL");
    CHECK_FALSE(answer["message"].get<std::string>().empty());
  }
  CHECK(all.answer("fly").find("where, go, rest, help") != std::string::npos);
}

TEST_CASE("bytes that are no text are answered with text") {
  const ControlCommands all = commands();
  const Json answer = Json::parse(all.answer("go \xFF\x01\""));
  CHECK(answer["gone"] == "\uFFFD\x01\"");
  CHECK(Json::parse(all.answer(std::string_view{"\xC3\0\n", 3}))["error"] == "EINVAL");
}

TEST_CASE("help lists every command with what to write behind it") {
  const Json help = Json::parse(commands().answer("help"))["commands"];
  REQUIRE(help.size() == 3);
  CHECK(help[0]["command"] == "where");
  CHECK(help[1]["command"] == "go PLACE");
  CHECK(help[1]["help"] == "Goes there.");
}

}  // namespace
}  // namespace rnbd::commands_test
