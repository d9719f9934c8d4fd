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
       },
       /*for_readers=*/true},
      {"go", "PLACE", "Goes there.",
       [](const std::string& place) -> tl::expected<Json, Failure> {
         if (place == "hell") return tl::unexpected(Failure{EPERM, "not there"});
         return Json{{"gone", place}};
       }},
      {"rest", "", "Nothing to say.", [](const std::string&) { return Json::object(); }},
  }};
}

std::string answer(std::string_view line) { return commands().answer(line, ControlCaller::owner); }

TEST_CASE("a line is a command and its argument, with blanks wherever") {
  CHECK(answer("where") == R"({"place":"here","deep":7})");
  CHECK(answer("  where\t") == R"({"place":"here","deep":7})");
  CHECK(answer("go far away") == R"({"gone":"far away"})");
  CHECK(answer(" go \t far ") == R"({"gone":"far"})");
  CHECK(answer("rest") == "{}");
}

TEST_CASE("what cannot be done is answered with an errno and a sentence") {
  CHECK(answer("go hell") == R"({"error":"EPERM","message":"not there"})");
  CHECK(answer("go") == R"({"error":"EINVAL","message":"write go PLACE"})");
  for (const char* line : {"", "  ", "fly", "where now", "WHERE"}) {
    CAPTURE(line);
    const Json refusal = Json::parse(answer(line));
    CHECK(refusal["error"] == "EINVAL");
    CHECK_FALSE(refusal["message"].get<std::string>().empty());
  }
  CHECK(answer("fly").find("where, go, rest, help") != std::string::npos);
}

TEST_CASE("a reader looks, and changes nothing") {
  const ControlCommands all = commands();
  const auto error_of = [&](const char* line) {
    return Json::parse(all.answer(line, ControlCaller::reader)).value("error", "");
  };
  CHECK(error_of("where") == "");
  CHECK(error_of("help") == "");
  CHECK(error_of("go far") == "EPERM");
  CHECK(error_of("rest") == "EPERM");
  CHECK(error_of("fly") == "EINVAL");
}

TEST_CASE("bytes that are no text are answered with text") {
  const Json gone = Json::parse(answer("go \xFF\x01\""));
  CHECK(gone["gone"] == "\uFFFD\x01\"");
  CHECK(Json::parse(answer(std::string_view{"\xC3\0\n", 3}))["error"] == "EINVAL");
}

TEST_CASE("help lists every command with what to write behind it") {
  const Json help = Json::parse(answer("help"))["commands"];
  REQUIRE(help.size() == 3);
  CHECK(help[0]["command"] == "where");
  CHECK(help[1]["command"] == "go PLACE");
  CHECK(help[1]["help"] == "Goes there.");
}

}  // namespace
}  // namespace rnbd::commands_test
