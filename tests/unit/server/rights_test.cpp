// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/rights.hpp"

#include <doctest/doctest.h>

namespace rights_test {

using namespace rnbd;

namespace {

Permission of(const Rights& rights, const std::string& name, const std::string& peer = "[::1]:9") {
  return permission_of(rights, {name, peer});
}

}  // namespace

TEST_CASE("rights: without any everybody may do everything") {
  CHECK(of({}, "") == Permission::write);
  CHECK(of({}, "host1") == Permission::write);
}

TEST_CASE("rights: a name is meant whole, its beginning with a star behind it") {
  const Rights rights{.rw = {"host1", "vm-*"}, .ro = {"backup"}};
  CHECK(of(rights, "host1") == Permission::write);
  CHECK(of(rights, "host12") == Permission::none);
  CHECK(of(rights, "host") == Permission::none);
  CHECK(of(rights, "vm-") == Permission::write);
  CHECK(of(rights, "vm-7") == Permission::write);
  CHECK(of(rights, "avm-7") == Permission::none);
  CHECK(of(rights, "backup") == Permission::read);
  CHECK(of(rights, "") == Permission::none);
}

TEST_CASE("rights: rw counts more than ro") {
  CHECK(of({.rw = {"a"}, .ro = {"*"}}, "a") == Permission::write);
  CHECK(of({.rw = {"a"}, .ro = {"*"}}, "b") == Permission::read);
}

TEST_CASE("rights: a star is for those who have proven a name, an address for those who have not") {
  const Rights star{.rw = {"*"}, .ro = {}};
  CHECK(of(star, "") == Permission::none);
  const Rights network{.rw = {"@10.0.0.0/24"}, .ro = {"@fd00::/8", "@192.0.2.7"}};
  CHECK(of(network, "", "10.0.0.255:1") == Permission::write);
  CHECK(of(network, "", "[::ffff:10.0.0.9]:1") == Permission::write);
  CHECK(of(network, "", "10.0.1.0:1") == Permission::none);
  CHECK(of(network, "", "[fd12::1%eth0]:1") == Permission::read);
  CHECK(of(network, "", "[fe80::1]:1") == Permission::none);
  CHECK(of(network, "", "192.0.2.7:1") == Permission::read);
  CHECK(of(network, "", "192.0.2.8:1") == Permission::none);
  CHECK(of(network, "", "nonsense") == Permission::none);
  CHECK(of(network, "host1", "10.0.0.9:1") == Permission::none);
  CHECK(of({.rw = {"@0.0.0.0/0"}, .ro = {}}, "", "[fd00::1]:1") == Permission::none);
  const Rights v6{.rw = {"@::/0"}, .ro = {"@::ffff:10.0.0.0/104"}};
  CHECK(of(v6, "", "[fd00::1]:1") == Permission::write);
  CHECK(of(v6, "", "10.0.0.9:1") == Permission::read);
  CHECK(of(v6, "", "[::ffff:10.0.0.9]:1") == Permission::read);
  CHECK(of(v6, "", "192.0.2.7:1") == Permission::none);
}

TEST_CASE("rights: patterns that can match nobody are named") {
  for (const char* good :
       {"host1", "*", "vm-*", "@10.0.0.0/24", "@::1", "@fd00::/128", "@0.0.0.0/0"})
    CHECK(fault_of_pattern(good).empty());
  for (const char* bad :
       {"", "a*b", "**", "a b", "a/b", "a@b", "a:b", "@", "@host", "@10.0.0.0/33", "@fd00::/129",
        "@10.0.0.0/", "@10.0.0.0/x", "@10.0.0/24", "\xc3\xa4", "@::ffff:10.0.0.1/24"})
    CHECK_FALSE(fault_of_pattern(bad).empty());
  CHECK_FALSE(fault_of_pattern(std::string(64, 'a')).empty());
}

TEST_CASE("rights: nothing in a value ends its place in an audit line") {
  CHECK(audit_line("open ok", {{"peer", "[::1]:9"}, {"export", "disk0"}}) ==
        "open ok peer=[::1]:9 export=disk0");
  CHECK(audit_line("x", {{"a", ""}, {"b", "c d"}}) == "x a=\"\" b=\"c d\"");
  const std::string line = audit_line("x", {{"a", "b\" identity=\"root\n\\"}});
  CHECK(line.find('\n') == std::string::npos);
  CHECK(line.starts_with("x a=\"b\\\" identity=\\\"root"));
}

TEST_CASE("rights: the number of a session is that of its user only") {
  const rtrs::wire::Uuid session{1, 2, 3};
  CHECK(number_of_user(session, "") == session);
  CHECK(number_of_user({}, "host1") == rtrs::wire::Uuid{});
  CHECK(number_of_user(session, "host1") == number_of_user(session, "host1"));
  CHECK(number_of_user(session, "host1") != number_of_user(session, "host2"));
  CHECK(number_of_user(session, "host1") != session);
}

}  // namespace rights_test
