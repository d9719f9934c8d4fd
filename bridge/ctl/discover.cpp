// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/discover.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <thread>
#include <tl/expected.hpp>
#include <utility>

#include "bridge/client/config.hpp"
#include "bridge/client/connections.hpp"
#include "bridge/client/interruptible_wait.hpp"
#include "bridge/client/uri.hpp"
#include "bridge/ctl/listing.hpp"
#include "bridge/ctl/output.hpp"
#include "bridge/daemon/cli.hpp"
#include "bridge/protocol/printable.hpp"
#include "bridge/protocol/uuid.hpp"

namespace rnbd {
namespace {

using Json = nlohmann::ordered_json;
using Export = CtlDiscovery::Export;

constexpr const char* kFields[] = {"name",    "size", "access", "state",
                                   "used_by", "uuid", "paths",  "description"};

bool is_elsewhere(const Export& each) { return each.entry.kind == wire::DirectoryKind::referral; }

const char* state_of(const Export& each) {
  if (is_elsewhere(each)) return "elsewhere";
  if (each.entry.waiting) return "waiting";
  return each.entry.in_use ? "in use" : "free";
}

/// Machines get bytes; null: unknown.
Json size_of(const Export& each, bool for_machines) {
  if (each.entry.waiting || is_elsewhere(each)) return nullptr;
  return for_machines ? Json(each.entry.size) : Json(size_text(each.entry.size));
}

Json access_of(const Export& each) {
  if (is_elsewhere(each)) return nullptr;
  return each.entry.may_write ? "rw" : "ro";
}

std::string uuid_of(const Export& each) {
  return each.entry.uuid == wire::Uuid{} ? "" : uuid_text(each.entry.uuid);
}

/// All fields of an export; the way to a referral is its URI.
Json row_of(const CtlDiscovery& discovery, const Export& each, bool for_machines) {
  return {{"name", each.entry.name},
          {"size", size_of(each, for_machines)},
          {"access", access_of(each)},
          {"state", state_of(each)},
          {"used_by", each.used_by.empty() ? Json{} : Json(each.used_by)},
          {"uuid", uuid_of(each)},
          {"paths", is_elsewhere(each) ? each.entry.description : joined(discovery.paths, " ")},
          {"description", is_elsewhere(each) ? "" : each.entry.description}};
}

std::string table_of(const CtlDiscovery& discovery) {
  if (discovery.exports.empty()) return "The server exports nothing that you may open.\n";
  const bool has_paths =
      !discovery.paths.empty() || std::ranges::any_of(discovery.exports, is_elsewhere);
  Json rows = Json::array();
  for (const Export& each : discovery.exports) {
    Json& row = rows.emplace_back(row_of(discovery, each, false));
    if (!has_paths) row.erase("paths");
  }
  return readable({{"exports", std::move(rows)}});
}

std::string json_of(const CtlDiscovery& discovery) {
  Json exports = Json::array(), referrals = Json::array();
  for (const Export& each : discovery.exports) {
    if (is_elsewhere(each)) {
      referrals.push_back({{"name", each.entry.name}, {"server", each.entry.description}});
      continue;
    }
    Json& row = exports.emplace_back(row_of(discovery, each, true));
    row.erase("paths");
  }
  const Json all{{"exports", std::move(exports)},
                 {"referrals", std::move(referrals)},
                 {"paths", discovery.paths}};
  return json_text(all);
}

/// Unknown: "".
std::string text_of_value(const Json& value) { return value.is_null() ? "" : plain_text(value); }

std::vector<std::vector<std::string>> cells_of(const CtlDiscovery& discovery) {
  std::vector<std::vector<std::string>> rows;
  for (const Export& each : discovery.exports) {
    const Json row = row_of(discovery, each, true);
    std::vector<std::string>& cells = rows.emplace_back();
    for (const char* field : kFields) cells.push_back(text_of_value(row[field]));
  }
  return rows;
}

// ---- Changes between two looks
// ------------------------------------------------------------------------------------

const Export* find(const CtlDiscovery& discovery, const std::string& name) {
  const auto found = std::ranges::find(discovery.exports, name,
                                       [](const Export& each) { return each.entry.name; });
  return found != discovery.exports.end() ? &*found : nullptr;
}

/// The fields of an export that have changed, "size 1 MiB -> 2 MiB, ...".
std::string differences(const CtlDiscovery& before, const Export& old, const CtlDiscovery& now,
                        const Export& present) {
  const Json was = row_of(before, old, false), is = row_of(now, present, false);
  std::string text;
  const auto shown = [](const Json& value) {
    const std::string word = text_of_value(value);
    return word.empty() ? std::string{"-"} : word;
  };
  for (const char* field : kFields) {
    // Paths of the server have lines of their own.
    const bool told = std::string_view{field} == "paths" && !is_elsewhere(present);
    if (was[field] == is[field] || told) continue;
    text += (text.empty() ? "" : ", ") + std::string{field} + ' ' + shown(was[field]) + " -> " +
            shown(is[field]);
  }
  return text;
}

std::string in_short(const CtlDiscovery& discovery, const Export& each) {
  const Json row = row_of(discovery, each, false);
  std::string text;
  for (const char* field : {"size", "access", "state", "used_by"}) {
    if (!row[field].is_null()) text += (text.empty() ? "" : ", ") + text_of_value(row[field]);
  }
  return is_elsewhere(each) ? text + ", " + text_of_value(row["paths"]) : text;
}

/// A line for each text that only the first list has.
std::string missing(const char* mark, const std::vector<std::string>& from,
                    const std::vector<std::string>& in) {
  std::string text;
  for (const std::string& each : from) {
    if (std::ranges::find(in, each) == in.end()) text += mark + readable_text(each) + "\n";
  }
  return text;
}

// ---- The command --------------------------------------------------------------------------------

constexpr const char* kDiscoverDescription =
    "rnbd-ctl discover - list the exports of a server, and open none of them\n"
    "\n"
    "URI is HOST[:PORT] for TCP, rdma:HOST[:PORT], or that of a client, without an export: "
    "rnbd://HOST over RDMA,\n"
    "rnbd+tcp://HOST over TCP,\n"
    "rnbds+tcp://USER@HOST with TLS. KEY=VALUE are parameters of nbdkit-rnbd-plugin(1), e.g.\n"
    "tls-psk=FILE. The server shows the exports that this user may open, and those that it knows "
    "to\n"
    "be elsewhere. PATHS are the addresses that it advertises.\n";

constexpr const char* kDiscoverExamples = R"(Examples:
  Which disks are there?
    rnbd-ctl discover 192.0.2.1

  Their names, for a script:
    rnbd-ctl discover --json rnbd+tcp://192.0.2.1 | jq -r '.exports[].name'

  Which ones come and go, and who takes one?
    rnbd-ctl discover --watch 192.0.2.1)";

struct Question {
  ClientConfig server;
  CtlFormat format = CtlFormat::table;
  bool watch = false;
  double interval = 1;  ///< seconds
};

/// The words that `rnbd-ctl list` has for it.
bool take_word(Question& question, const std::string& word) {
  constexpr std::pair<std::string_view, CtlFormat> kFormats[] = {
      {"csv", CtlFormat::csv}, {"json", CtlFormat::json}, {"xml", CtlFormat::xml}};
  for (const auto& [name, format] : kFormats) {
    if (word != name) continue;
    question.format = format;
    return true;
  }
  if (word != "watch") return false;
  return question.watch = true;
}

tl::expected<ClientConfig, std::string> config_of(const std::string& uri,
                                                  const std::vector<std::string>& parameters) {
  ConfigReader reader;
  (void)reader.set("dynamic-export", "true");  // none of them is meant
  if (auto set = reader.set("uri", uri); !set) return tl::unexpected(set.error());
  for (const std::string& parameter : parameters) {
    const std::size_t equals = parameter.find('=');
    if (equals == std::string::npos) {
      return tl::unexpected("'" + parameter + "' is no parameter; write KEY=VALUE");
    }
    const std::string_view text = parameter;
    auto set = reader.set(text.substr(0, equals), text.substr(equals + 1));
    if (!set) return tl::unexpected(set.error());
  }
  return reader.complete();
}

tl::expected<Question, EarlyExit> parse_discover(int argc, const char* const* argv) {
  CLI::App app{kDiscoverDescription, "rnbd-ctl discover"};
  Question question;
  std::string uri;
  std::vector<std::string> parameters;
  for (const char* word : {"json", "csv", "xml", "watch"}) {
    const std::string name = word;
    const char* const help = name == "json"  ? "Print one line of JSON."
                             : name == "csv" ? "Print values with commas between them."
                             : name == "xml" ? "Print XML."
                                             : "Ask again every second, and tell the changes.";
    app.add_flag_callback(
        "--" + name, [&question, name] { take_word(question, name); }, help);
  }
  app.add_option("--interval", question.interval, "--watch: seconds between two questions.")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 3600.0));
  app.add_option("URI", uri, "The server.")->required();
  // CLI11 takes no name with a '=' in it any more (2.4).
  app.add_option("PARAMETER", parameters,
                 "KEY=VALUE: how to reach it; or json, csv, xml or watch.");
  if (auto early = parse_arguments(app, kDiscoverExamples, "there is one URI only", argc, argv)) {
    return tl::unexpected(std::move(*early));
  }
  std::erase_if(parameters, [&](const auto& word) { return take_word(question, word); });
  uri = uri_of_server(uri);
  if (const auto parsed = parse_device_uri(uri); parsed && !parsed->device.empty()) {
    return tl::unexpected(usage_error(app, "write the URI without /" + parsed->device +
                                               ": all exports of the server are listed"));
  }
  auto server = config_of(uri, parameters);
  if (!server) return tl::unexpected(usage_error(app, server.error()));
  question.server = *std::move(server);
  question.server.lanes = 1;
  return question;
}

/// The time beside that to connect, for a server that shows life and does not answer.
constexpr std::chrono::seconds kAnswerPatience{10};

tl::expected<CtlDiscovery, Failure> look(Connections& connections, rtrs::Duration connect_timeout) {
  constexpr std::uint32_t kAll =
      wire::kDirectoryExports | wire::kDirectoryReferrals | wire::kDirectoryPaths;
  AnswerLimit limit{connect_timeout + kAnswerPatience};
  auto entries = connections.directory(limit.interrupt(), kAll);
  if (!entries && limit.is_over()) {
    return tl::unexpected(Failure{ETIMEDOUT, "the server is there, and does not answer"});
  }
  if (!entries) return tl::unexpected(entries.error());
  AnswerLimit for_users{kAnswerPatience};  // all of them
  CtlDiscovery discovery;
  for (wire::DirectoryEntry& entry : *entries) {
    if (entry.kind == wire::DirectoryKind::path) {
      discovery.paths.push_back(std::move(entry.name));
      continue;
    }
    const bool used = entry.in_use && entry.kind == wire::DirectoryKind::exported;
    std::string user = used ? connections.who(entry.name, for_users.interrupt()) : "";
    discovery.exports.push_back({std::move(entry), std::move(user)});
  }
  return discovery;
}

void complain_of(const Failure& failure) { complain(readable_text(failure.text)); }

int show(const Question& question, Connections& connections) {
  const auto discovery = look(connections, question.server.connect_timeout);
  if (!discovery) {
    complain_of(discovery.error());
    return 1;
  }
  say(text_of(*discovery, question.format));
  return 0;
}

/// The troubles that keep the first question waiting, told as they come.
///
/// Threads: any, beside the one that speaks.
rtrs::Log tell_of_waiting(const std::atomic<bool>& waiting) {
  return [&waiting](rtrs::LogLevel level, const std::string& line) {
    if (!waiting || level < rtrs::LogLevel::warning) return;
    std::fputs(("rnbd-ctl: " + readable_text(line) + "\n").c_str(), stderr);
  };
}

/// Runs until Ctrl-C, or until its reader is gone. People see the changes; programs get the whole
/// directory again. A server that is away is waited for.
int watch(const Question& question, Connections& connections, std::atomic<bool>& waiting) {
  std::optional<CtlDiscovery> shown;
  std::string trouble;
  for (;;) {
    auto present = look(connections, question.server.connect_timeout);
    waiting = false;
    if (!present && !shown) {
      complain_of(present.error());
      return 1;
    }
    const std::string before = std::exchange(trouble, present ? "" : present.error().text);
    if (!present && trouble != before) complain_of(present.error());
    if (present && (!shown || *present != *shown)) {
      const bool briefly = shown && question.format == CtlFormat::table;
      say(briefly ? changes_between(*shown, *present) : text_of(*present, question.format));
      shown = *std::move(present);
    }
    if (!is_written()) return 1;
    std::this_thread::sleep_for(std::chrono::duration<double>(question.interval));
  }
}

int run(const Question& question) {
  std::atomic<bool> waiting{true};
  Connections connections{question.server, tell_of_waiting(waiting)};
  const int status =
      question.watch ? watch(question, connections, waiting) : show(question, connections);
  connections.leave();
  return status;
}

}  // namespace

std::string text_of(const CtlDiscovery& discovery, CtlFormat format) {
  const std::vector<std::string> names{std::begin(kFields), std::end(kFields)};
  switch (format) {
    case CtlFormat::table:
      return table_of(discovery);
    case CtlFormat::json:
      return json_of(discovery);
    case CtlFormat::csv:
      return csv_table(names, cells_of(discovery));
    case CtlFormat::xml:
      return xml_table("export", names, cells_of(discovery));
  }
  return "";
}

std::string changes_between(const CtlDiscovery& before, const CtlDiscovery& now) {
  std::string text = missing("- path ", before.paths, now.paths);
  text += missing("+ path ", now.paths, before.paths);
  for (const Export& each : before.exports) {
    if (find(now, each.entry.name) == nullptr) text += "- " + readable_text(each.entry.name) + "\n";
  }
  for (const Export& each : now.exports) {
    const std::string name = readable_text(each.entry.name);
    const Export* const old = find(before, each.entry.name);
    if (old == nullptr) {
      text += "+ " + name + ": " + in_short(now, each) + "\n";
    } else if (const std::string news = differences(before, *old, now, each); !news.empty()) {
      text += "~ " + name + ": " + news + "\n";
    }
  }
  return text;
}

std::optional<int> run_discover(int argc, const char* const* argv) {
  if (argc < 2 || std::string_view{argv[1]} != "discover") return std::nullopt;
  constexpr std::array kHelp{"discover", "--help"};
  const bool asks_help = argc == 3 && std::string_view{argv[2]} == "help";
  const auto question =
      asks_help ? parse_discover(kHelp.size(), kHelp.data()) : parse_discover(argc - 1, argv + 1);
  if (question) return run(*question);
  return leave_early(question.error());
}

}  // namespace rnbd
