// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/discovery.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "bridge/ctl/listing_programs.hpp"
#include "bridge/ctl/view.hpp"
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

std::string joined(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& each : all) text += (text.empty() ? "" : " ") + each;
  return text;
}

/// All fields of an export; the way to a referral is its URI.
Json row_of(const CtlDiscovery& discovery, const Export& each, bool for_machines) {
  return {{"name", each.entry.name},
          {"size", size_of(each, for_machines)},
          {"access", access_of(each)},
          {"state", state_of(each)},
          {"used_by", each.used_by.empty() ? Json{} : Json(each.used_by)},
          {"uuid", uuid_of(each)},
          {"paths", is_elsewhere(each) ? each.entry.description : joined(discovery.paths)},
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
  return readable_json(all.dump(-1, ' ', false, Json::error_handler_t::replace)) + "\n";
}

/// Unknown: "".
std::string text_of_value(const Json& value) {
  if (value.is_null()) return "";
  return readable_text(value.is_string() ? value.get<std::string>() : value.dump());
}

std::vector<std::vector<std::string>> cells_of(const CtlDiscovery& discovery) {
  std::vector<std::vector<std::string>> rows;
  for (const Export& each : discovery.exports) {
    const Json row = row_of(discovery, each, true);
    std::vector<std::string>& cells = rows.emplace_back();
    for (const char* field : kFields) cells.push_back(text_of_value(row[field]));
  }
  return rows;
}

// ---- Changes ------------------------------------------------------------------------------------

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
    // Those of the server have lines of their own.
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

}  // namespace rnbd
