// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/reload_plan.hpp"

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "bridge/daemon/server/annex.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

bool same_listeners(const Settings& a, const Settings& b) {
  return std::ranges::equal(a.listen, b.listen, [](const auto& x, const auto& y) {
    return x.transport == y.transport && x.host == y.host && x.port == y.port &&
           x.access == y.access && x.tls == y.tls && x.auth == y.auth && x.from == y.from;
  });
}

template <auto Member>
bool same(const Settings& a, const Settings& b) {
  return a.*Member == b.*Member;
}

struct Fixed {
  const char* key;
  bool (*same)(const Settings& a, const Settings& b);
};

constexpr Fixed kFixed[] = {
    {"listen", same_listeners},
    {"search-path", same<&Settings::search_path>},
    {"state-directory", same<&Settings::state_directory>},
    {"log-level", same<&Settings::log_level>},
    {"pid-file", same<&Settings::pid_file>},
    {"control", same<&Settings::control>},
    {"queue-depth", same<&Settings::queue_depth>},
    {"max-io-size", same<&Settings::max_io_size>},
    {"memory-limit", same<&Settings::memory_limit>},
    {"max-sessions", same<&Settings::max_sessions>},
    {"max-sessions-per-user", same<&Settings::max_sessions_per_user>},
    {"memory-limit-per-user", same<&Settings::memory_limit_per_user>},
    {"max-connections", same<&Settings::max_connections>},
    {"reactors", same<&Settings::reactors>},
    {"heartbeat", same<&Settings::heartbeat>},
    {"handshake-timeout", same<&Settings::handshake_timeout>},
    {"no-digest", same<&Settings::no_digest>},
    {"always-invalidate", same<&Settings::always_invalidate>},
    {"direct", same<&Settings::direct>},
    {"no-uring", same<&Settings::no_uring>},
    {"tls", [](const Settings& a, const Settings& b) { return a.tls_mode() == b.tls_mode(); }},
    {"auth", same<&Settings::auth>},
    {"tls-psk",
     [](const Settings& a, const Settings& b) { return a.tls_keys.psk == b.tls_keys.psk; }},
    {"tls-certificates",
     [](const Settings& a, const Settings& b) {
       return a.tls_keys.certificates == b.tls_keys.certificates;
     }},
    {"tls-verify-peer",
     [](const Settings& a, const Settings& b) {
       return a.tls_keys.verify_peer == b.tls_keys.verify_peer;
     }},
};

/// The value of an annex's setting; "": it is not set.
std::string value_of(const Settings& settings, const char* key) {
  const auto found = settings.of_annexes.find(key);
  return found == settings.of_annexes.end() ? "" : found->second;
}

void plan_export(ReloadPlan& plan, const ExportSpecification& now,
                 const ExportSpecification& next) {
  const bool same_storage = now.storage == next.storage && now.direct == next.direct;
  const bool same_words =
      now.rights == next.rights && now.description == next.description && now.limits == next.limits;
  if (same_storage && same_words && now.read_only == next.read_only) {
    ++plan.kept;
    return;
  }
  plan.changed.push_back(next.name);
  const bool widened = now.read_only && !next.read_only;
  if (same_storage && !widened) {
    if (now.read_only != next.read_only) plan.must_be_free.push_back(next.name);
    plan.change.update.push_back(next);
    return;
  }
  plan.must_be_free.push_back(next.name);
  plan.change.remove.push_back(next.name);
  plan.change.add.push_back(next);
}

}  // namespace

ReloadPlan plan_reload(const Settings& now, const Settings& next) {
  ReloadPlan plan;
  std::unordered_map<std::string_view, const ExportSpecification*> before;
  before.reserve(now.exports.size());
  for (const ExportSpecification& each : now.exports) before[each.name] = &each;
  std::unordered_set<std::string_view> wanted;
  wanted.reserve(next.exports.size());
  for (const ExportSpecification& each : next.exports) {
    const auto blame = [&](const std::string& text) {
      plan.faults.push_back(each.place + "export " + in_quotes(each.name) + text);
    };
    if (!wanted.insert(each.name).second) {
      blame(" is there twice; give each export a name of its own");
      continue;
    }
    const std::string fault = fault_of_description(each.description);
    if (!fault.empty()) blame(": the description " + fault);
    if (const auto known = before.find(each.name); known != before.end()) {
      plan_export(plan, *known->second, each);
    } else {
      plan.added.push_back(each.name);
      plan.change.add.push_back(each);
    }
  }
  for (const ExportSpecification& each : now.exports) {
    if (wanted.contains(each.name)) continue;
    plan.removed.push_back(each.name);
    plan.must_be_free.push_back(each.name);
    plan.change.remove.push_back(each.name);
  }
  plan.change.search_rights = next.search_rights;
  plan.change.directions = next.directions;
  plan.directed_anew = now.directions != next.directions;
  plan.sessions_limited_anew = now.session_limits != next.session_limits;
  for (const Fixed& each : kFixed) {
    if (!each.same(now, next)) plan.needs_restart.emplace_back(each.key);
  }
  for (const DaemonAnnex* annex : daemon_annexes())
    for (const SettingRule& rule : annex->settings)
      if (value_of(now, rule.key) != value_of(next, rule.key))
        plan.needs_restart.emplace_back(rule.key);
  const auto judge = [&plan](const Settings& judged) {
    const std::string wrong = contradiction_in(judged);
    const bool news = std::ranges::find(plan.faults, wrong) == plan.faults.end();
    if (!wrong.empty() && news) plan.faults.push_back(wrong);
  };
  judge(next);
  // The settings in force then are judged as well: TLS, say, is on until the restart.
  if (!plan.needs_restart.empty()) judge(after_reload(now, next));
  return plan;
}

Settings after_reload(Settings now, Settings next) {
  now.exports = std::move(next.exports);
  now.search_rights = std::move(next.search_rights);
  now.directions = std::move(next.directions);
  now.session_limits = next.session_limits;
  return now;
}

}  // namespace rnbd
