// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/mirror/mirror_annex.hpp"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "bridge/ctl/check.hpp"
#include "bridge/ctl/program_words.hpp"

namespace rnbd::mirror_annex_test {
namespace {

/// A bridge of a mirror with one session, and the answer of its `mirror status`.
CtlJson bridge(const char* mirror) {
  CtlJson status = CtlJson::parse(R"({
    "server": "rnbd-mirror+tcp://a,b", "session": "vm1", "trouble": "",
    "paths": [{"address": "tcp:10.0.0.1:1234", "state": "connected", "in_use": true, "trouble": ""}],
    "devices": []})");
  status["mirror"] = CtlJson::parse(mirror);
  return status;
}

CtlVerdict check(const CtlJson& status) {
  return verdict_on({.verb = CtlVerb::check}, {{{{"disk0", "D"}, status, {}}}}, {}, {});
}

bool says(const CtlVerdict& verdict, const char* text) {
  CAPTURE(verdict.text);
  return verdict.text.find(text) != std::string::npos;
}

TEST_CASE("a mirror that nobody has used yet is idle, and one that was tried in vain critical") {
  CtlJson idle = bridge(R"({"attached": false, "trouble": "", "members": []})");
  idle["session"] = nullptr;
  idle["paths"] = CtlJson::array();
  for (const char* server : {"rnbd-mirror+tcp://a,b", "rnbds-mirror+tcp://a,b"}) {
    idle["server"] = server;
    idle["trouble"] = idle["mirror"]["trouble"] = "";
    CHECK(check(idle).health == CtlHealth::ok);
    idle["trouble"] = idle["mirror"]["trouble"] = "too few members: a, b";
    CHECK(check(idle).health == CtlHealth::critical);
  }
}

TEST_CASE("a member of a mirror that comes back is a warning") {
  const CtlVerdict verdict = check(bridge(R"({"members": [
    {"server": "10.0.0.1:1234", "state": "in step", "progress_percent": null, "trouble": ""},
    {"server": "10.0.0.2:1234", "state": "resync", "progress_percent": 40, "trouble": ""}]})"));
  CHECK(verdict.health == CtlHealth::warning);
  CHECK(says(verdict, "WARNING: mirror vm1: 10.0.0.2:1234 recovers, 40 %"));
}

TEST_CASE("a mirror with too few members is critical") {
  const CtlVerdict verdict = check(bridge(R"({"attached": false, "trouble": "too few members: a, b",
    "members": [
    {"server": "10.0.0.1:1234", "state": "waiting", "progress_percent": null, "trouble": ""}]})"));
  CHECK(verdict.health == CtlHealth::critical);
  CHECK(says(verdict, "CRITICAL: mirror vm1: its requests wait or fail: too few members: a, b"));
}

TEST_CASE("only a mirror is asked for its members, and not who has a server of such a name") {
  const auto has_mirror = [](const char* server) {
    return kMirrorAnnex.has_disk({{"server", server}});
  };
  CHECK(has_mirror("rnbd-mirror://a,b"));
  CHECK(has_mirror("rnbds-mirror+tcp://a,b"));
  CHECK_FALSE(has_mirror("rnbd+tcp://disk-mirror:1234"));
  CHECK_FALSE(kMirrorAnnex.has_disk(CtlJson::object()));
}

TEST_CASE("the command about mirrors has a help") {
  CHECK(help_on_program_word({"mirror", "status", "--help"})->find(" mirror status|verify") !=
        std::string::npos);
}

TEST_CASE("a comparison of copies is waited for, and its outcome is the exit status") {
  CHECK(kMirrorAnnex.progress_of({"mirror", "verify"}) == "mirror verify status");
  CHECK(kMirrorAnnex.progress_of({"mirror", "verify", "--from", "a:1"}) == "mirror verify status");
  CHECK(kMirrorAnnex.progress_of({"mirror", "verify", "stop"}).empty());
  CHECK(kMirrorAnnex.progress_of({"mirror", "status"}).empty());
  const auto outcome = [](const char* answer) {
    return kMirrorAnnex.outcome(CtlJson::parse(answer));
  };
  CHECK_FALSE(outcome(R"({"state": "running", "different": 3, "repaired": 0})"));
  CHECK(outcome(R"({"state": "done", "different": 3, "repaired": 0})") == 1);
  CHECK(outcome(R"({"state": "done", "different": 3, "repaired": 3})") == 0);
  CHECK(outcome(R"({"state": "done", "different": 0, "repaired": 0, "left_out_mib": 1})") == 1);
  CHECK(outcome(R"({"state": "done", "different": 0, "repaired": 0, "lost": ["b:1"]})") == 1);
  CHECK(outcome(R"({"state": "done", "different": 0, "repaired": 0, "left_out_mib": 0,
                    "servers": ["a:1", "b:1"], "lost": []})") == 0);
  CHECK(outcome(R"({"state": "stopped", "different": 0, "repaired": 0})") == 1);
}

}  // namespace
}  // namespace rnbd::mirror_annex_test
