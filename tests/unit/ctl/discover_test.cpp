// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/discover.hpp"

#include <doctest/doctest.h>

namespace rnbd::discover_test {
namespace {

CtlDiscovery::Export disk(const std::string& name, std::uint64_t size) {
  wire::DirectoryEntry entry{.name = name, .description = "", .size = size};
  entry.may_write = true;
  return {entry, ""};
}

CtlDiscovery::Export referral(const std::string& name, const std::string& uri) {
  return {{.name = name, .description = uri, .kind = wire::DirectoryKind::referral}, ""};
}

CtlDiscovery two() {
  CtlDiscovery all;
  all.paths = {"tcp:10.0.0.1:1234", "tcp:10.0.1.1:1234"};
  all.exports = {disk("disk0", 1 << 20), referral("vm7", "rnbd+tcp://b/vm7")};
  all.exports[0].entry.description = "first, <best>";
  return all;
}

TEST_CASE("a table has the server's addresses, and the way to what is elsewhere") {
  CHECK(text_of(two(), CtlFormat::table) ==
        "NAME   SIZE   ACCESS  STATE      USED-BY  UUID  PATHS                                "
        "DESCRIPTION\n"
        "disk0  1 MiB  rw      free       -        -     tcp:10.0.0.1:1234 tcp:10.0.1.1:1234  "
        "first, <best>\n"
        "vm7    -      -       elsewhere  -        -     rnbd+tcp://b/vm7                     -\n");
}

TEST_CASE("without any of that the table is as narrow as it was") {
  CtlDiscovery all;
  CHECK(text_of(all, CtlFormat::table) == "The server exports nothing that you may open.\n");
  all.exports = {disk("disk0", 512)};
  all.exports[0].entry.waiting = true;
  CHECK(text_of(all, CtlFormat::table) ==
        "NAME   SIZE  ACCESS  STATE    USED-BY  UUID  DESCRIPTION\n"
        "disk0  -     rw      waiting  -        -     -\n");
}

TEST_CASE("programs get bytes, and every field each time") {
  CHECK(text_of(two(), CtlFormat::json) ==
        R"({"exports":[{"name":"disk0","size":1048576,"access":"rw","state":"free","used_by":null,)"
        R"("uuid":"","description":"first, <best>"}],)"
        R"("referrals":[{"name":"vm7","server":"rnbd+tcp://b/vm7"}],)"
        R"("paths":["tcp:10.0.0.1:1234","tcp:10.0.1.1:1234"]})"
        "\n");
  CHECK(text_of(two(), CtlFormat::csv) ==
        "name,size,access,state,used_by,uuid,paths,description\n"
        "disk0,1048576,rw,free,,,tcp:10.0.0.1:1234 tcp:10.0.1.1:1234,\"first, <best>\"\n"
        "vm7,,,elsewhere,,,rnbd+tcp://b/vm7,\n");
  const std::string xml = text_of(two(), CtlFormat::xml);
  CHECK(xml.find("<exports>\n  <export>\n    <name>disk0</name>\n") == 0);
  CHECK(xml.find("<description>first, &lt;best&gt;</description>") != std::string::npos);
  CHECK(xml.find("<paths>rnbd+tcp://b/vm7</paths>") != std::string::npos);
}

TEST_CASE("no text of a server garbles the output") {
  CtlDiscovery all;
  all.exports = {disk("a\xff\x1b", 512)};
  for (const auto format : {CtlFormat::table, CtlFormat::csv, CtlFormat::xml, CtlFormat::json}) {
    CHECK(text_of(all, format).find('\x1b') == std::string::npos);
  }
  CHECK(changes_between({}, all).find('\x1b') == std::string::npos);
}

TEST_CASE("a watcher is told what came, went and is another one, and nothing else") {
  CHECK(changes_between(two(), two()) == "");
  CtlDiscovery now = two();
  now.paths = {"tcp:10.0.0.1:1234", "tcp:10.0.2.1:1234"};
  now.exports[0].entry.size = 2 << 20;
  now.exports[0].entry.in_use = true;
  now.exports[0].used_by = "'vm1' (10.0.0.5:1) writes to it";
  now.exports[1] = disk("disk1", 512);
  CHECK(changes_between(two(), now) ==
        "- path tcp:10.0.1.1:1234\n"
        "+ path tcp:10.0.2.1:1234\n"
        "- vm7\n"
        "~ disk0: size 1 MiB -> 2 MiB, state free -> in use, used_by - -> 'vm1' (10.0.0.5:1) "
        "writes to it\n"
        "+ disk1: 512 bytes, rw, free\n");
  CHECK(changes_between(now, two()).find("+ vm7: elsewhere, rnbd+tcp://b/vm7\n") !=
        std::string::npos);
}

TEST_CASE("an export that moves to another server is one change") {
  CtlDiscovery before = two(), now = two();
  before.exports[1] = disk("vm7", 512);
  const std::string text = changes_between(before, now);
  CHECK(text.find("~ vm7: ") == 0);
  CHECK(text.find("state free -> elsewhere") != std::string::npos);
  CHECK(text.find("rnbd+tcp://b/vm7") != std::string::npos);
}

}  // namespace
}  // namespace rnbd::discover_test
