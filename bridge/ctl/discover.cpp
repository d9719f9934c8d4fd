// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/discover.hpp"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/connections.hpp"
#include "bridge/client/uri.hpp"
#include "bridge/daemon/cli.hpp"
#include "bridge/daemon/ctl_view.hpp"
#include "bridge/protocol/printable.hpp"
#include "bridge/protocol/uuid.hpp"

namespace rnbd {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kDiscoverDescription =
    "rnbd-ctl discover - list the exports of a server, and open none of them\n"
    "\n"
    "URI is HOST[:PORT] for TCP, or that of a client, without an export: rnbd://HOST over RDMA, "
    "rnbd+tcp://HOST over TCP,\n"
    "rnbds+tcp://USER@HOST with TLS. KEY=VALUE are parameters of nbdkit-rnbd-plugin(1), e.g.\n"
    "tls-psk=FILE. The server shows the exports that this user may open.\n";

constexpr const char* kDiscoverExamples = R"(Examples:
  Which disks are there?
    rnbd-ctl discover 192.0.2.1

  Their names, for a script:
    rnbd-ctl discover --json rnbd+tcp://192.0.2.1 | jq -r '.exports[].name')";

struct Question {
  ClientConfig server;
  bool json = false;
};

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
  app.add_flag("--json", question.json, "Print one line of JSON.");
  app.add_option("URI", uri, "The server.")->required();
  app.add_option("KEY=VALUE", parameters, "How to reach it.");
  if (auto early = parse_arguments(app, kDiscoverExamples, "there is one URI only", argc, argv)) {
    return tl::unexpected(std::move(*early));
  }
  if (uri.find("://") == std::string::npos) uri.insert(0, "rnbd+tcp://");
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

const char* state_of(const wire::DirectoryEntry& entry) {
  if (entry.waiting) return "waiting";
  return entry.in_use ? "in use" : "free";
}

/// Machines get the size in bytes; null: unknown.
Json size_of(const wire::DirectoryEntry& entry, bool for_machines) {
  if (entry.waiting) return nullptr;
  return for_machines ? Json(entry.size) : Json(size_text(entry.size));
}

Json json_of(const std::vector<wire::DirectoryEntry>& entries, Connections& connections,
             bool for_machines) {
  Json exports = Json::array();
  for (const wire::DirectoryEntry& entry : entries) {
    const std::string holder = entry.in_use ? connections.who(entry.name, {}) : "";
    exports.push_back({{"name", entry.name},
                       {"size", size_of(entry, for_machines)},
                       {"access", entry.may_write ? "rw" : "ro"},
                       {"state", state_of(entry)},
                       {"used_by", holder.empty() ? Json{} : Json(holder)},
                       {"uuid", entry.uuid == wire::Uuid{} ? "" : uuid_text(entry.uuid)},
                       {"description", entry.description}});
  }
  return {{"exports", std::move(exports)}};
}

int show_exports(const Question& question) {
  Connections connections{question.server, {}};
  const auto entries = connections.directory({});
  if (!entries) {
    connections.leave();
    std::fprintf(stderr, "rnbd-ctl: %s\n", readable_text(entries.error().text).c_str());
    return 1;
  }
  const Json json = json_of(*entries, connections, question.json);
  connections.leave();
  if (question.json) {
    std::puts(json.dump().c_str());
  } else if (entries->empty()) {
    std::puts("The server exports nothing that you may open.");
  } else {
    std::fputs(readable(json).c_str(), stdout);
  }
  return 0;
}

}  // namespace

std::optional<int> run_discover(int argc, const char* const* argv) {
  if (argc < 2 || std::string_view{argv[1]} != "discover") return std::nullopt;
  const auto question = parse_discover(argc - 1, argv + 1);
  if (question) return show_exports(*question);
  const EarlyExit& early = question.error();
  std::fputs(early.text.c_str(), early.status == 0 ? stdout : stderr);
  return early.status;
}

}  // namespace rnbd
