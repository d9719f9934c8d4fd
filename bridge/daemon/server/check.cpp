// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/check.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "bridge/daemon/logging.hpp"
#include "bridge/daemon/process.hpp"
#include "bridge/daemon/server/late_exports.hpp"
#include "bridge/daemon/server/open_exports.hpp"
#include "bridge/daemon/server/service_rights.hpp"
#include "bridge/daemon/server/state_directory.hpp"
#include "bridge/protocol/printable.hpp"
#include "rdma/host_name.hpp"
#include "rdma/transport/tls/credentials.hpp"

namespace rnbd {
namespace {

void complain(const std::string& text) { log_function()(rtrs::LogLevel::error, text); }

/// The storage that a server would wait for, except that in use: by a running server, as a rule.
/// Where many lack the same, as descriptors, the first is named and the others are counted.
void add_absent(const Settings& settings, const ExportCatalogue& catalogue,
                std::vector<Mistake>& mistakes) {
  constexpr std::size_t kMostAlike = 3;
  std::map<std::string, std::vector<const ExportStatus*>> causes;
  const auto all = catalogue.exports();
  for (const ExportStatus& status : all) {
    if (!status.waits() || status.in_use) continue;
    const std::size_t path = status.trouble.starts_with('/') ? status.trouble.find(": ") : 0;
    causes[path == std::string::npos ? status.trouble : status.trouble.substr(path)].push_back(
        &status);
  }
  for (const auto& [cause, alike] : causes) {
    const bool together = alike.size() > kMostAlike;
    for (const ExportStatus* const status : together ? std::vector{alike.front()} : alike) {
      const auto specification =
          std::ranges::find(settings.exports, status->name, &ExportSpecification::name);
      const std::string others =
          together ? " and " + std::to_string(alike.size() - 1) + " more exports" : "";
      mistakes.push_back({specification->line, "export " + rnbd::in_quotes(status->name) + others +
                                                   ": " + status->trouble});
    }
  }
  const std::string trouble = catalogue.files().trouble();
  if (!trouble.empty()) mistakes.push_back({0, trouble});
}

/// A listening name without an address. The server itself would wait, because the name server may
/// be late; but the name may also be misspelt.
void add_unknown_names(const Settings& settings, std::vector<Mistake>& mistakes) {
  for (const rtrs::ListenAddress& address : settings.listen) {
    if (address.host.empty() || address.host == "*" || address.host.starts_with("gid:")) continue;
    const auto found = rtrs::resolve_host(address.host, AI_PASSIVE);
    if (!found) mistakes.push_back({0, "listen: " + found.error().text});
  }
}

/// Keys that the server would not start with.
void add_unusable_keys(const Settings& settings, std::vector<Mistake>& mistakes) {
  if (settings.tls_keys.none()) return;
  const auto keys = rtrs::tls::Credentials::load(settings.tls_keys, rtrs::tls::Role::server);
  if (!keys) mistakes.push_back({0, keys.error()});
}

std::string place(const Invocation& invocation, unsigned line) {
  return line == 0 ? "" : invocation.config + ":" + std::to_string(line) + ": ";
}

}  // namespace

int check_configuration(const Invocation& invocation) {
  const Settings& settings = invocation.settings;
  const Judge judge = judge_as_service(invocation.config);
  std::vector<Mistake> mistakes;
  if (!judge.mistake.empty()) mistakes.push_back({0, judge.mistake});
  for (const ConfigMistake& each : invocation.mistakes) mistakes.push_back({each.line, each.text});
  const std::string contradiction = invocation.mistakes.empty() ? contradiction_in(settings) : "";
  if (!contradiction.empty()) mistakes.push_back({0, contradiction});
  const std::string state = complaint_about_state_directory(
      settings.state_directory.empty() ? default_state_directory() : settings.state_directory,
      settings.search_path);
  if (!state.empty()) mistakes.push_back({0, state});
  raise_descriptor_limit();
  const OpenedExports opened = open_exports(settings, {.make_files = false}, kStateDescriptors);
  for (const Mistake& each : opened.mistakes) {
    mistakes.push_back({each.line, place(invocation, each.line) + each.text});
  }
  const bool final =
      !opened.mistakes.empty() || !invocation.mistakes.empty() || !contradiction.empty();
  std::vector<Mistake> absent;
  add_absent(settings, *opened.catalogue, absent);
  add_unknown_names(settings, absent);
  add_unusable_keys(settings, absent);
  for (const Mistake& each : absent) {
    mistakes.push_back({each.line, place(invocation, each.line) + each.text});
  }
  std::ranges::stable_sort(mistakes, {}, &Mistake::line);
  for (const Mistake& each : mistakes) complain(each.text);
  tell_what_is_in_use(*opened.catalogue, "the server would serve the others meanwhile");
  if (const std::string doubt = doubt_about(settings); !doubt.empty())
    log_function()(rtrs::LogLevel::warning, doubt);
  if (!judge.note.empty()) log_function()(rtrs::LogLevel::warning, judge.note);
  if (!mistakes.empty()) return final ? 2 : 1;
  announce("the configuration is correct, exporting " + describe(settings, *opened.catalogue));
  return 0;
}

}  // namespace rnbd
