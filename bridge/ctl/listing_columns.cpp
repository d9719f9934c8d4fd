// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/listing_columns.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "bridge/protocol/closest.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

std::string complaint_about_field(CtlObject object, const std::string& name) {
  std::vector<std::string> known;
  std::string list;
  for (const CtlField& field : fields_of(object)) {
    known.emplace_back(field.name);
    list += (list.empty() ? "" : ", ") + known.back();
  }
  const std::string guess = closest(name, known);
  return "a " + std::string{name_of(object)} + " has no field '" + name + "'" +
         (guess.empty() ? "; there are " + list : "; did you mean " + guess + "?");
}

std::vector<std::string> names_in(std::string_view list) {
  std::vector<std::string> names;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    if (end > at) names.emplace_back(list.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

bool changes_columns(std::string_view word) {
  return word.starts_with('+') || word.starts_with('-');
}

/// Changes columns as a word, "a,b", "+a" or "-a", wants it. "" or the mistake.
std::string apply_word(CtlObject object, std::string_view word, CtlColumns& columns) {
  const char sign = word.front();
  const bool changes = changes_columns(word);
  for (const std::string& name : names_in(word.substr(changes ? 1 : 0))) {
    const CtlField* field = find_field(object, name);
    if (field == nullptr) return complaint_about_field(object, name);
    std::erase_if(columns, [&](const CtlField& each) { return each.name == name; });
    if (sign != '-') columns.push_back(*field);
  }
  return "";
}

bool is_known_in(const std::vector<CtlJson>& rows, const CtlField& field) {
  return std::ranges::any_of(rows, [&](const CtlJson& row) {
    const CtlJson& value = row[std::string{field.name}];
    return !value.is_null() && value != "";
  });
}

/// The direction of all rows is no news if they have the same one. Paths stand below the name of
/// their session.
bool tells_something(CtlObject object, const std::vector<CtlJson>& rows, const CtlField& field) {
  if (object == CtlObject::session && field.name == "sessname") return true;
  if (rows.empty())
    return field.name != "hostname" && field.name != "direction" && field.name != "trouble";
  if (field.name != "direction") return is_known_in(rows, field);
  return std::ranges::any_of(
      rows, [&](const CtlJson& row) { return row["direction"] != rows.front()["direction"]; });
}

/// Exports of several servers may have the same name.
bool tells_servers_apart(const std::vector<CtlJson>& rows, const CtlField& field) {
  if (field.name != "program") return false;
  const CtlJson* first = nullptr;
  for (const CtlJson& row : rows) {
    if (row["direction"] != "export") continue;
    if (first == nullptr) first = &row;
    if (row["program"] != (*first)["program"]) return true;
  }
  return false;
}

/// While an upgrade is half done, or where programs were not restarted after one.
bool tells_versions_apart(const std::vector<CtlJson>& rows, const CtlField& field) {
  if (field.name != "version") return false;
  std::set<std::string> versions;
  for (const CtlJson& row : rows) {
    if (row["version"].is_string()) versions.insert(row["version"]);
  }
  return versions.size() > 1;
}

/// Programs find always the same ones. A table for people leaves out those that tell nothing.
CtlColumns usual_columns(const CtlAction& action, CtlObject object,
                         const std::vector<CtlJson>& rows, bool all) {
  CtlColumns columns;
  const bool for_people = action.format == CtlFormat::table && !all;
  for (const CtlField& field : fields_of(object)) {
    const bool news =
        for_people && (tells_servers_apart(rows, field) || tells_versions_apart(rows, field));
    const bool usual = field.usual || news;
    if (!all && !usual) continue;
    // A table has them as a tree, below their session.
    const bool tree = action.format == CtlFormat::table && action.verb == CtlVerb::list;
    if (field.kind == CtlKind::paths && (tree || !action.tree)) continue;
    if (for_people && !tells_something(object, rows, field)) continue;
    columns.push_back(field);
  }
  return columns;
}

double power_of(char unit) {
  double bytes = 1;
  for (std::size_t i = kCtlUnits.find(unit); i > 0; --i) bytes *= 1024;
  return bytes;
}

/// At most two digits behind the point, and no zeros at the end.
std::string short_number(double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.2f", value);
  std::string number = text.data();
  number.erase(number.find_last_not_of('0') + 1);
  if (number.ends_with('.')) number.pop_back();
  return number;
}

std::string human_size(double bytes) {
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < kCtlUnits.size(); ++unit) bytes /= 1024;
  return short_number(bytes) + kCtlUnits[unit];
}

/// With blanks between them.
std::string names_of_paths(const CtlJson& paths, const char* unknown) {
  std::string names;
  for (const CtlJson& path : paths) {
    if (!path["pathname"].is_string()) continue;
    names += (names.empty() ? "" : " ") + readable_text(path["pathname"].get<std::string>());
  }
  return names.empty() ? unknown : names;
}

}  // namespace

const CtlField* find_field(CtlObject object, std::string_view name) {
  const auto fields = fields_of(object);
  const auto found = std::ranges::find(fields, name, &CtlField::name);
  return found != fields.end() ? &*found : nullptr;
}

tl::expected<CtlColumns, std::string> columns_of(const CtlAction& action, CtlObject object,
                                                 const std::vector<CtlJson>& rows, bool all) {
  CtlColumns columns = usual_columns(action, object, rows, all || action.all_fields);
  bool chosen = false;
  for (const std::string& word : action.fields) {
    // The first one takes the place of the usual ones; "a b" is "a,b".
    if (!changes_columns(word) && !std::exchange(chosen, true)) columns.clear();
    if (std::string wrong = apply_word(object, word, columns); !wrong.empty()) {
      return tl::unexpected(wrong);
    }
  }
  if (columns.empty()) return tl::unexpected(std::string{"no field is left to show"});
  return columns;
}

CtlJson value_of(const CtlAction& action, const CtlField& field, const CtlJson& row) {
  const CtlJson& value = row[std::string{field.name}];
  if (field.kind != CtlKind::bytes || !value.is_number() || action.unit == '\0') return value;
  const double size = value.get<double>() / power_of(action.unit);
  return size == static_cast<double>(static_cast<std::uint64_t>(size))
             ? CtlJson(static_cast<std::uint64_t>(size))
             : CtlJson(size);
}

std::string text_in(const CtlAction& action, const CtlField& field, const CtlJson& row,
                    const char* unknown) {
  const CtlJson value = value_of(action, field, row);
  if (value.is_null()) return unknown;
  if (field.kind == CtlKind::paths) return names_of_paths(value, unknown);
  if (value.is_number_float()) return short_number(value.get<double>());
  const bool for_people = action.format == CtlFormat::table && action.unit == '\0';
  if (for_people && field.kind == CtlKind::bytes && value.is_number()) {
    return human_size(value.get<double>());
  }
  const std::string text =
      readable_text(value.is_string() ? value.get<std::string>() : value.dump());
  return text.empty() ? unknown : text;
}

}  // namespace rnbd
