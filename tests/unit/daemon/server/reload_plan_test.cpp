// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/reload_plan.hpp"

#include <doctest/doctest.h>

#include <initializer_list>

namespace reload_plan_test {

using namespace rnbd;

namespace {

using Names = std::vector<std::string>;

Settings with(std::initializer_list<const char*> exports) {
  Settings settings;
  for (const char* text : exports) settings.exports.push_back(parse_export(text).value());
  return settings;
}

Names names_of(const std::vector<ExportSpecification>& exports) {
  Names names;
  for (const ExportSpecification& each : exports) names.push_back(each.name);
  return names;
}

}  // namespace

TEST_CASE("reload: what is new, gone and the same is told apart by name") {
  const auto plan = plan_reload(with({"a=/a", "b=/b"}), with({"c=/c", "a=/a"}));
  CHECK(plan.faults.empty());
  CHECK(plan.added == Names{"c"});
  CHECK(plan.removed == Names{"b"});
  CHECK(plan.changed.empty());
  CHECK(plan.kept == 1);
  CHECK(plan.must_be_free == Names{"b"});
  CHECK(names_of(plan.change.add) == Names{"c"});
  CHECK(plan.change.remove == Names{"b"});
}

TEST_CASE("reload: rights and descriptions change while clients have it open") {
  const auto plan = plan_reload(with({"a=/a"}), with({"a=/a,rw=@::1,description=x"}));
  CHECK(plan.changed == Names{"a"});
  CHECK(plan.must_be_free.empty());
  CHECK(plan.change.add.empty());
  CHECK(names_of(plan.change.update) == Names{"a"});
}

TEST_CASE("reload: limits change while clients have it open") {
  for (const char* next : {"a=/a", "a=/a,iops-limit=9", "a=/a,iops-limit=5,bandwidth-limit=1M"}) {
    const auto plan = plan_reload(with({"a=/a,iops-limit=5"}), with({next}));
    CHECK(plan.changed == Names{"a"});
    CHECK(plan.must_be_free.empty());
    CHECK(names_of(plan.change.update) == Names{"a"});
    CHECK(!plan.sessions_limited_anew);
  }
  Settings next = with({"a=/a"});
  next.session_limits.iops = 7;
  const auto plan = plan_reload(with({"a=/a"}), next);
  CHECK(plan.sessions_limited_anew);
  CHECK(plan.needs_restart.empty());
  CHECK(after_reload(with({"a=/a"}), next).session_limits.iops == 7);
}

TEST_CASE("reload: addresses and referrals change, and rights on them are judged") {
  Settings next = with({"a=/a"});
  CHECK(add_advertised(next.directions, "tcp:192.0.2.1") == "");
  next.directions.referrals = {{.name = "vm7", .uri = "rnbd+tcp://b/vm7"}};
  const auto plan = plan_reload(with({"a=/a"}), next);
  CHECK(plan.faults.empty());
  CHECK(plan.directed_anew);
  CHECK(plan.kept == 1);
  CHECK(plan.change.directions == next.directions);
  CHECK(after_reload(with({"a=/a"}), next).directions == next.directions);
  CHECK_FALSE(plan_reload(next, next).directed_anew);
  next.directions.referrals[0].name = "/a";
  CHECK(plan_reload(with({"a=/a"}), next).faults.size() == 1);
  Settings safe = with({"a=/a,rw=*"});
  safe.tls_keys.psk = "/keys";
  safe.directions.referrals = {{.name = "vm7", .uri = "rnbd+tcp://b/vm7"}};
  const auto unsaid = plan_reload(safe, safe).faults;
  REQUIRE(unsaid.size() == 1);
  CHECK(unsaid[0].find("users = [\"host1\"] below [referral.vm7]") != std::string::npos);
}

TEST_CASE("reload: another storage, or the right to write, is opened anew") {
  for (const char* next : {"a=/b,ro", "a=/a", "a=/a,ro,direct"}) {
    const auto plan = plan_reload(with({"a=/a,ro"}), with({next}));
    CHECK(plan.must_be_free == Names{"a"});
    CHECK(plan.change.remove == Names{"a"});
    CHECK(names_of(plan.change.add) == Names{"a"});
  }
}

TEST_CASE("reload: what becomes read-only keeps its storage, but nobody may have it open") {
  const auto plan = plan_reload(with({"a=memory:1M"}), with({"a=memory:1M,ro"}));
  CHECK(plan.must_be_free == Names{"a"});
  CHECK(plan.change.remove.empty());
  CHECK(names_of(plan.change.update) == Names{"a"});
}

TEST_CASE("reload: what stays as it is until a restart is named, and is not in force") {
  Settings next = with({"a=/a"});
  next.queue_depth = 1;
  next.tls_keys.psk = "/keys";
  next.exports[0].rights.rw = {"*"};
  const auto plan = plan_reload(with({"a=/a"}), next);
  CHECK(plan.needs_restart == Names{"queue-depth", "tls", "tls-psk"});
  const Settings after = after_reload(with({"a=/a"}), next);
  CHECK(after.queue_depth == Settings{}.queue_depth);
  CHECK(after.tls_keys.none());
  CHECK(after.exports[0].rights.rw == Names{"*"});
}

TEST_CASE("reload: rights cannot go while the server that runs authenticates") {
  Settings now = with({"a=/a,rw=*"});
  now.tls_keys.psk = "/keys";
  CHECK_FALSE(plan_reload(now, with({"a=/a"})).faults.empty());
}

TEST_CASE("reload: names that are there twice, and an empty configuration, are faults") {
  CHECK(plan_reload(with({"a=/a"}), with({"a=/a", "a=/b"})).faults.size() == 1);
  CHECK(plan_reload(with({"a=/a"}), Settings{}).faults.size() == 1);
}

}  // namespace reload_plan_test
