// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/rights_check.hpp"

#include <algorithm>
#include <iterator>

#include "bridge/protocol/printable.hpp"
#include "bridge/server/rights.hpp"

namespace rnbd {
namespace {

/// A longer list is of no more help.
constexpr std::size_t kMostNames = 8;

/// The names of exports without rights: of the file, or of the command line.
std::string without_rights(const Settings& settings, bool in_file) {
  std::string names;
  std::size_t count = 0;
  for (const ExportSpecification& each : settings.exports) {
    if (each.rights.given() || (each.line != 0) != in_file) continue;
    if (++count <= kMostNames) names += (names.empty() ? "" : ", ") + in_quotes(each.name);
  }
  if (count > kMostNames) names += " and " + std::to_string(count - kMostNames) + " more";
  return names;
}

std::string contradiction_in_placeholder(const Settings& settings) {
  const std::string& path = settings.search_path;
  if (authenticates(settings) && path.ends_with("%SESSNAME%")) {
    return "search path '" + path +
           "': a client chooses the name of its session itself; write %IDENTITY%, the name that it "
           "has proven, in place of %SESSNAME%";
  }
  if (!authenticates(settings) && path.ends_with("%IDENTITY%")) {
    return "search path '" + path +
           "': no client proves a name here; ask for it with tls = \"require\" or auth = \"psk\", "
           "and keys";
  }
  return "";
}

}  // namespace

bool authenticates(const Settings& settings) {
  const bool proves = !settings.tls_keys.psk.empty() ||
                      (!settings.tls_keys.certificates.empty() && settings.tls_keys.verify_peer);
  if (!proves) return false;
  if (settings.auth == rtrs::AuthMode::psk) return true;
  // Also for sockets of the service manager, and for the default address.
  if (settings.listen.empty()) return settings.tls_mode() != rtrs::TlsMode::off;
  return std::ranges::any_of(settings.listen, [&](const rtrs::ListenAddress& address) {
    if (address.auth == rtrs::AuthMode::psk) return true;
    return address.transport != rtrs::TransportKind::rdma &&
           address.tls.value_or(settings.tls_mode()) != rtrs::TlsMode::off;
  });
}

std::string contradiction_in_rights(const Settings& settings) {
  if (std::string wrong = contradiction_in_placeholder(settings); !wrong.empty()) return wrong;
  if (!authenticates(settings)) return "";
  std::string advice;
  const auto say = [&](const std::string& subject, const std::string& what) {
    advice += (advice.empty() ? "" : "; ") + subject + ": write " + what;
  };
  if (const std::string names = without_rights(settings, true); !names.empty()) {
    say("exports " + names,
        "rw = [\"host1\"] or ro = [\"host1\"] below each [export.NAME], or rw = [\"*\"] for every "
        "client with a key");
  }
  if (const std::string names = without_rights(settings, false); !names.empty()) {
    say("exports " + names,
        "--export NAME=STORAGE,rw=host1 or ,ro=host1, or ,rw=* for every client with a key");
  }
  if (!settings.search_path.empty() && !settings.search_rights.given()) {
    say("the search path",
        "rw = [\"*\"] or ro = [\"*\"] below [search], or --search-rw=* or --search-ro=*");
  }
  for (const Referral& each : settings.directions.referrals) {
    if (each.rights.given()) continue;
    say("referral " + in_quotes(each.name),
        "users = [\"host1\"] below [referral." + each.name + "], or users = [\"*\"]");
  }
  if (advice.empty()) return "";
  return "clients prove their names here, and it is not said who may use what; " + advice;
}

std::string add_patterns(std::vector<std::string>& target, std::string_view list) {
  std::vector<std::string> patterns;
  while (true) {
    const std::size_t comma = std::min(list.find(','), list.size());
    const std::string_view pattern = list.substr(0, comma);
    if (const std::string fault = fault_of_pattern(pattern); !fault.empty()) {
      return in_quotes(pattern) + " " + fault;
    }
    patterns.emplace_back(pattern);
    if (comma == list.size()) break;
    list.remove_prefix(comma + 1);
  }
  std::ranges::move(patterns, std::back_inserter(target));
  return "";
}

}  // namespace rnbd
