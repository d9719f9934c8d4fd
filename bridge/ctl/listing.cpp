// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/listing.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "bridge/ctl/output.hpp"
#include "bridge/protocol/closest.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

using Columns = std::vector<CtlField>;
using Cells = std::vector<std::string>;

constexpr std::size_t kGap = 2;  ///< blanks between columns
constexpr std::array kObjectsOfList{CtlObject::device, CtlObject::session, CtlObject::path};

// ---- Columns ------------------------------------------------------------------------------------

/// Null: there is none.
const CtlField* find_field(CtlObject object, std::string_view name) {
  const auto fields = fields_of(object);
  const auto found = std::ranges::find(fields, name, &CtlField::name);
  return found != fields.end() ? &*found : nullptr;
}

std::string complaint_about_field(CtlObject object, const std::string& name) {
  std::vector<std::string> known;
  for (const CtlField& field : fields_of(object)) known.emplace_back(field.name);
  const std::string guess = closest(name, known);
  return "a " + std::string{name_of(object)} + " has no field '" + name + "'" +
         (guess.empty() ? "; there are " + joined(known) : "; did you mean " + guess + "?");
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
std::string apply_word(CtlObject object, std::string_view word, Columns& columns) {
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

/// Versions differ while an upgrade is half done, or where programs were not restarted after one.
bool tells_versions_apart(const std::vector<CtlJson>& rows, const CtlField& field) {
  if (field.name != "version") return false;
  std::set<std::string> versions;
  for (const CtlJson& row : rows) {
    if (row["version"].is_string()) versions.insert(row["version"]);
  }
  return versions.size() > 1;
}

/// Programs find always the same ones. A table for people leaves out those that tell nothing.
Columns usual_columns(const CtlAction& action, CtlObject object, const std::vector<CtlJson>& rows,
                      bool all) {
  Columns columns;
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

/// `all`: every field, unless the words of the command choose others.
///
/// Errors: a sentence with the unknown field and the known ones.
tl::expected<Columns, std::string> columns_of(const CtlAction& action, CtlObject object,
                                              const std::vector<CtlJson>& rows, bool all) {
  Columns columns = usual_columns(action, object, rows, all || action.all_fields);
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

// ---- Values -------------------------------------------------------------------------------------

double power_of(char unit) {
  double bytes = 1;
  for (std::size_t i = kCtlUnits.find(unit); i > 0; --i) bytes *= 1024;
  return bytes;
}

/// The number with two digits behind the point at most, and without zeros at the end.
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

/// The names with blanks between them.
std::string names_of_paths(const CtlJson& paths, const char* unknown) {
  std::string names;
  for (const CtlJson& path : paths) {
    if (!path["pathname"].is_string()) continue;
    names += (names.empty() ? "" : " ") + readable_text(path["pathname"].get<std::string>());
  }
  return names.empty() ? unknown : names;
}

/// The value in the unit of the command.
CtlJson value_of(const CtlAction& action, const CtlField& field, const CtlJson& row) {
  const CtlJson& value = row[std::string{field.name}];
  if (field.kind != CtlKind::bytes || !value.is_number() || action.unit == '\0') return value;
  const double size = value.get<double>() / power_of(action.unit);
  return size == static_cast<double>(static_cast<std::uint64_t>(size))
             ? CtlJson(static_cast<std::uint64_t>(size))
             : CtlJson(size);
}

/// The same as text, with `unknown` for null.
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
  const std::string text = plain_text(value);
  return text.empty() ? unknown : text;
}

Cells cells_of(const CtlAction& action, const Columns& columns, const CtlJson& row,
               const char* unknown) {
  Cells cells;
  for (const CtlField& column : columns) cells.push_back(text_in(action, column, row, unknown));
  return cells;
}

// ---- Rows for programs --------------------------------------------------------------------------

/// Source: RFC 4180.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string{c};
  return quoted + '"';
}

std::string csv_line(const Cells& cells) {
  std::string line;
  for (const std::string& cell : cells)
    line += (&cell == &cells.front() ? "" : ",") + csv_cell(cell);
  return line + '\n';
}

std::string xml_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string{c};
  }
  return escaped;
}

Cells names_of(const Columns& columns) {
  Cells names;
  for (const CtlField& column : columns) names.emplace_back(column.name);
  return names;
}

std::vector<Cells> texts_of(const CtlAction& action, const Columns& columns,
                            const std::vector<CtlJson>& list) {
  std::vector<Cells> rows;
  for (const CtlJson& row : list) rows.push_back(cells_of(action, columns, row, ""));
  return rows;
}

CtlJson objects_of(const CtlAction& action, const Columns& columns,
                   const std::vector<CtlJson>& list);

/// The paths of a session, as a list of paths has them.
CtlJson paths_in(const CtlAction& action, const CtlJson& paths) {
  CtlAction of_paths = action;
  of_paths.fields.clear();
  const std::vector<CtlJson> list{paths.begin(), paths.end()};
  const auto columns = columns_of(of_paths, CtlObject::path, list, /*all=*/false);
  return columns ? objects_of(of_paths, *columns, list) : CtlJson::array();
}

CtlJson objects_of(const CtlAction& action, const Columns& columns,
                   const std::vector<CtlJson>& list) {
  CtlJson objects = CtlJson::array();
  for (const CtlJson& row : list) {
    CtlJson& object = objects.emplace_back();
    for (const CtlField& column : columns) {
      CtlJson value = value_of(action, column, row);
      const bool nested = column.kind == CtlKind::paths && value.is_array();
      object[std::string{column.name}] = nested ? paths_in(action, value) : std::move(value);
    }
  }
  return objects;
}

std::string json_of(const CtlAction& action, CtlObject object, const Columns& columns,
                    const std::vector<CtlJson>& list) {
  const CtlJson all{{std::string{name_of(object)} + 's', objects_of(action, columns, list)}};
  return json_text(all, 2);
}

/// The rows in the format of the command, which must be one for programs.
std::string for_programs(const CtlAction& action, CtlObject object, const Columns& columns,
                         const std::vector<CtlJson>& list) {
  if (action.format == CtlFormat::csv) {
    return csv_table(action.headers ? names_of(columns) : Cells{}, texts_of(action, columns, list));
  }
  if (action.format == CtlFormat::xml) {
    return xml_table(name_of(object), names_of(columns), texts_of(action, columns, list));
  }
  return json_of(action, object, columns, list);
}

// ---- Tables -------------------------------------------------------------------------------------

std::string upper(std::string_view name) {
  std::string text{name};
  for (char& c : text) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return text;
}

bool is_right(const CtlField& field) {
  return field.kind != CtlKind::text && field.kind != CtlKind::paths;
}

std::string lines_of(const Columns& columns, const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths(columns.size());
  for (const Cells& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Cells& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string pad(widths[i] - row[i].size(), ' ');
      line += is_right(columns[i]) ? pad + row[i] : row[i] + pad;
      line.append(kGap, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

/// The row of a path below its session: the fields that both have, and the path's name in the first
/// column.
Cells branch_of(const CtlAction& action, const Columns& columns, const CtlJson& path, bool last) {
  Cells cells;
  for (const CtlField& column : columns) {
    const CtlField* field = find_field(CtlObject::path, column.name);
    cells.push_back(field != nullptr ? text_in(action, *field, path, "") : "");
  }
  const CtlField name = *find_field(CtlObject::path, "pathname");
  cells.front() = (last ? "`- " : "|- ") + text_in(action, name, path, "-");
  return cells;
}

void add_branches(const CtlAction& action, const Columns& columns, const CtlJson& session,
                  const CtlInventory& inventory, std::vector<Cells>& rows) {
  std::vector<const CtlJson*> branches;
  for (const CtlJson& path : inventory.paths) {
    const bool same = path["sessname"] == session["sessname"] &&
                      path["program"] == session["program"] &&
                      path["direction"] == session["direction"];
    if (same && session["direction"] == "import") branches.push_back(&path);
  }
  for (const CtlJson* path : branches) {
    rows.push_back(branch_of(action, columns, *path, path == branches.back()));
  }
}

bool is_summed(const CtlField& field) {
  return field.kind == CtlKind::bytes || field.kind == CtlKind::count;
}

/// An export that several sessions have open is there once.
std::uint64_t sum_of(const std::vector<const CtlJson*>& list, const std::string& name) {
  std::set<std::pair<std::string, std::string>> seen;
  std::uint64_t sum = 0;
  for (const CtlJson* row : list) {
    if (!(*row)[name].is_number_unsigned()) continue;
    const bool of_export = name == "size" && (*row)["direction"] == "export";
    if (of_export && !seen.emplace((*row)["program"].dump(), (*row)["mapping_path"].dump()).second)
      continue;
    sum += (*row)[name].get<std::uint64_t>();
  }
  return sum;
}

/// A server's own disks and those that come from elsewhere do not add up: `label` tells the two
/// apart. Nothing when no column is worth a sum.
void add_total(const CtlAction& action, const Columns& columns,
               const std::vector<const CtlJson*>& list, const std::string& label,
               std::vector<Cells>& rows) {
  if (list.size() < 2) return;
  CtlJson sums;
  for (const CtlField& column : columns) {
    const std::string name{column.name};
    sums[name] = is_summed(column) ? CtlJson(sum_of(list, name)) : CtlJson("");
  }
  Cells cells = cells_of(action, columns, sums, "");
  const auto space = std::ranges::find(cells, "");
  if (space != cells.end()) *space = label;
  rows.push_back(cells);
}

void add_totals(const CtlAction& action, const Columns& columns, const std::vector<CtlJson>& list,
                std::vector<Cells>& rows) {
  if (!action.totals || std::ranges::none_of(columns, is_summed)) return;
  std::vector<const CtlJson*> imports, exports;
  for (const CtlJson& row : list) {
    (row["direction"] == "export" ? exports : imports).push_back(&row);
  }
  const bool both = !imports.empty() && !exports.empty();
  if (both && std::ranges::all_of(columns, is_summed)) return;  // no room to tell them apart
  add_total(action, columns, imports, both ? "TOTAL import" : "TOTAL", rows);
  add_total(action, columns, exports, both ? "TOTAL export" : "TOTAL", rows);
}

std::string table_of(const CtlAction& action, CtlObject object, const Columns& columns,
                     const std::vector<CtlJson>& list, const CtlInventory& inventory) {
  std::vector<Cells> rows;
  if (action.headers) {
    Cells& headings = rows.emplace_back();
    for (const CtlField& column : columns) headings.push_back(upper(column.name));
  }
  for (const CtlJson& row : list) {
    rows.push_back(cells_of(action, columns, row, "-"));
    if (object == CtlObject::session && action.tree) {
      add_branches(action, columns, row, inventory, rows);
    }
  }
  add_totals(action, columns, list, rows);
  return lines_of(columns, rows);
}

// ---- show ---------------------------------------------------------------------------------------

constexpr const char* kDeviceNames[] = {"mapping_path", "devname", "devpath", "uuid", "program"};
constexpr const char* kSessionNames[] = {"sessname", "srvname"};
constexpr const char* kPathNames[] = {"src_addr"};

std::span<const char* const> naming_fields(CtlObject object) {
  if (object == CtlObject::device) return kDeviceNames;
  if (object == CtlObject::session) return kSessionNames;
  return kPathNames;
}

bool is_named(const CtlJson& row, CtlObject object, const std::string& name) {
  if (object == CtlObject::path && is_path_called(row, name)) return true;
  return std::ranges::any_of(naming_fields(object),
                             [&](const char* field) { return row[field] == name; });
}

/// A client's session has its program's name, too, where sessions are asked for: otherwise that is
/// its device.
bool is_session_of(const CtlJson& row, const CtlAction& action) {
  if (action.object != CtlObject::session || row["direction"] != "import") return false;
  const CtlJson& disks = said_list(row, "serves");
  return row["program"] == action.names.front() ||
         std::ranges::find(disks, CtlJson(action.names.front())) != disks.end();
}

std::vector<CtlJson> named(const CtlInventory& inventory, CtlObject object,
                           const CtlAction& action) {
  std::vector<CtlJson> found;
  for (const CtlJson& row : inventory.of(object)) {
    if (is_named(row, object, action.names.front()) || is_session_of(row, action))
      found.push_back(row);
  }
  return found;
}

/// The kind of thing that has the name.
tl::expected<CtlObject, std::string> object_named(const CtlAction& action,
                                                  const CtlInventory& inventory) {
  const std::string& name = action.names.front();
  std::vector<CtlObject> objects;
  for (const CtlObject object : kObjectsOfList) {
    if (action.object && *action.object != object) continue;
    if (!named(inventory, object, action).empty()) objects.push_back(object);
  }
  if (objects.size() == 1) return objects.front();
  const std::string kind = action.object ? name_of(*action.object) : "device, session or path";
  if (objects.empty()) {
    return tl::unexpected("there is no " + kind + " '" + name + "'; `rnbd-ctl list` tells of all");
  }
  return tl::unexpected("'" + name + "' is a " + name_of(objects[0]) + " and a " +
                        name_of(objects[1]) + "; write rnbd-ctl show " + name_of(objects[0]) + " " +
                        name);
}

/// A line for each field.
std::string cards_of(const CtlAction& action, const Columns& columns,
                     const std::vector<CtlJson>& list) {
  const Columns two{{"", CtlKind::text, true}, {"", CtlKind::text, true}};
  std::string text;
  for (const CtlJson& row : list) {
    std::vector<Cells> lines;
    for (const CtlField& column : columns) {
      lines.push_back({std::string{column.name} + ":", text_in(action, column, row, "-")});
    }
    text += (text.empty() ? "" : "\n") + lines_of(two, lines);
  }
  return text;
}

}  // namespace

bool is_device_named(const CtlJson& row, const std::string& name) {
  return is_named(row, CtlObject::device, name);
}

tl::expected<std::string, std::string> listing(const CtlAction& action,
                                               const CtlInventory& inventory) {
  const CtlObject object = action.object.value_or(CtlObject::device);
  const std::vector<CtlJson>& list = inventory.of(object);
  const auto columns = columns_of(action, object, list, /*all=*/false);
  if (!columns) return tl::unexpected(columns.error());
  return action.format == CtlFormat::table ? table_of(action, object, *columns, list, inventory)
                                           : for_programs(action, object, *columns, list);
}

tl::expected<std::string, std::string> showing(const CtlAction& action,
                                               const CtlInventory& inventory) {
  const auto object = object_named(action, inventory);
  if (!object) return tl::unexpected(object.error());
  const std::vector<CtlJson> list = named(inventory, *object, action);
  const auto columns = columns_of(action, *object, list, /*all=*/true);
  if (!columns) return tl::unexpected(columns.error());
  return action.format == CtlFormat::table ? cards_of(action, *columns, list)
                                           : for_programs(action, *object, *columns, list);
}

std::string csv_table(const std::vector<std::string>& names,
                      const std::vector<std::vector<std::string>>& rows) {
  std::string text = names.empty() ? "" : csv_line(names);
  for (const std::vector<std::string>& row : rows) text += csv_line(row);
  return text;
}

std::string xml_table(const std::string& name, const std::vector<std::string>& names,
                      const std::vector<std::vector<std::string>>& rows) {
  std::string text = "<" + name + "s>\n";
  for (const std::vector<std::string>& row : rows) {
    text += "  <" + name + ">\n";
    for (std::size_t i = 0; i < names.size(); ++i) {
      text += "    <" + names[i] + ">" + xml_text(row[i]) + "</" + names[i] + ">\n";
    }
    text += "  </" + name + ">\n";
  }
  return text + "</" + name + "s>\n";
}

}  // namespace rnbd
