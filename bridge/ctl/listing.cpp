// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/listing.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "bridge/client/closest.hpp"
#include "bridge/daemon/ctl_view.hpp"

namespace rnbd {
namespace {

using Columns = std::vector<CtlField>;
using Cells = std::vector<std::string>;
template <class Value>
using Or = tl::expected<Value, std::string>;

constexpr std::size_t kGap = 2;  ///< blanks between columns
constexpr std::array kObjectsOfList{CtlObject::device, CtlObject::session, CtlObject::path};

// ---- Which columns ------------------------------------------------------------------------------

const CtlField* find_field(CtlObject object, std::string_view name) {
  const auto fields = fields_of(object);
  const auto found = std::ranges::find(fields, name, &CtlField::name);
  return found != fields.end() ? &*found : nullptr;
}

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

/// Changes columns as a word, "a,b", "+a" or "-a", wants it. "" or what is wrong.
std::string apply_word(CtlObject object, std::string_view word, Columns& columns) {
  const char sign = word.front();
  const bool changes = sign == '+' || sign == '-';
  if (!changes) columns.clear();
  for (const std::string& name : names_in(word.substr(changes ? 1 : 0))) {
    const CtlField* field = find_field(object, name);
    if (field == nullptr) return complaint_about_field(object, name);
    std::erase_if(columns, [&](const CtlField& each) { return each.name == name; });
    if (sign != '-') columns.push_back(*field);
  }
  return "";
}

bool is_known_in(const std::vector<CtlJson>& rows, const CtlField& field) {
  return std::ranges::any_of(
      rows, [&](const CtlJson& row) { return !row[std::string{field.name}].is_null(); });
}

bool has_both_directions(const std::vector<CtlJson>& rows) {
  return std::ranges::any_of(
      rows, [&](const CtlJson& row) { return row["direction"] != rows.front()["direction"]; });
}

/// For people: nothing that no row has, and the direction if it is not always the same. Programs
/// find always the same ones.
Columns usual_columns(const CtlAction& action, CtlObject object, const std::vector<CtlJson>& rows,
                      bool all) {
  Columns columns;
  const bool for_people = action.format == CtlFormat::table && !all;
  for (const CtlField& field : fields_of(object)) {
    const bool tells = field.name == "direction" && has_both_directions(rows);
    if (!all && !field.usual && !(for_people && tells)) continue;
    if (for_people && !rows.empty() && !is_known_in(rows, field)) continue;
    columns.push_back(field);
  }
  return columns;
}

Or<Columns> columns_of(const CtlAction& action, CtlObject object, const std::vector<CtlJson>& rows,
                       bool all) {
  Columns columns = usual_columns(action, object, rows, all || action.all_fields);
  for (const std::string& word : action.fields) {
    if (std::string wrong = apply_word(object, word, columns); !wrong.empty()) {
      return tl::unexpected(wrong);
    }
  }
  if (columns.empty()) return tl::unexpected(std::string{"no field is left to show"});
  return columns;
}

// ---- One value ----------------------------------------------------------------------------------

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

CtlJson value_of(const CtlAction& action, const CtlField& field, const CtlJson& row) {
  const CtlJson& value = row[std::string{field.name}];
  if (field.kind != CtlKind::bytes || !value.is_number() || action.unit == '\0') return value;
  const double size = value.get<double>() / power_of(action.unit);
  return size == static_cast<double>(static_cast<std::uint64_t>(size))
             ? CtlJson(static_cast<std::uint64_t>(size))
             : CtlJson(size);
}

/// `unknown` is for null.
std::string text_in(const CtlAction& action, const CtlField& field, const CtlJson& row,
                    const char* unknown) {
  const CtlJson value = value_of(action, field, row);
  if (value.is_null()) return unknown;
  if (value.is_number_float()) return short_number(value.get<double>());
  const bool for_people = action.format == CtlFormat::table && action.unit == '\0';
  if (for_people && field.kind == CtlKind::bytes && value.is_number()) {
    return human_size(value.get<double>());
  }
  const std::string text =
      readable_text(value.is_string() ? value.get<std::string>() : value.dump());
  return text.empty() ? unknown : text;
}

// ---- Tables -------------------------------------------------------------------------------------

std::string upper(std::string_view name) {
  std::string text{name};
  for (char& c : text) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return text;
}

bool is_right(const CtlField& field) { return field.kind != CtlKind::text; }

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

Cells cells_of(const CtlAction& action, const Columns& columns, const CtlJson& row) {
  Cells cells;
  for (const CtlField& column : columns) cells.push_back(text_in(action, column, row, "-"));
  return cells;
}

/// A path below its session: what both have a field for, and its name in the first column.
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

/// Nothing when no column is worth a sum.
void add_totals(const CtlAction& action, const Columns& columns, const std::vector<CtlJson>& list,
                std::vector<Cells>& rows) {
  if (!action.totals || list.size() < 2 || std::ranges::none_of(columns, is_summed)) return;
  CtlJson sums;
  for (const CtlField& column : columns) {
    std::uint64_t sum = 0;
    const std::string name{column.name};
    for (const CtlJson& row : list) {
      if (row[name].is_number_unsigned()) sum += row[name].get<std::uint64_t>();
    }
    sums[name] = is_summed(column) ? CtlJson(sum) : CtlJson("");
  }
  Cells cells;
  for (const CtlField& column : columns) cells.push_back(text_in(action, column, sums, ""));
  if (cells.front().empty()) cells.front() = "TOTAL";
  rows.push_back(cells);
}

std::string table_of(const CtlAction& action, CtlObject object, const Columns& columns,
                     const std::vector<CtlJson>& list, const CtlInventory& inventory) {
  std::vector<Cells> rows;
  if (action.headers) {
    Cells& headings = rows.emplace_back();
    for (const CtlField& column : columns) headings.push_back(upper(column.name));
  }
  for (const CtlJson& row : list) {
    rows.push_back(cells_of(action, columns, row));
    if (object == CtlObject::session && action.tree) {
      add_branches(action, columns, row, inventory, rows);
    }
  }
  add_totals(action, columns, list, rows);
  return lines_of(columns, rows);
}

// ---- For programs -------------------------------------------------------------------------------

/// Source: RFC 4180.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string{c};
  return quoted + '"';
}

std::string csv_of(const CtlAction& action, const Columns& columns,
                   const std::vector<CtlJson>& list) {
  std::string text;
  const auto add_line = [&](auto cell) {
    for (const CtlField& column : columns) {
      text += (&column == &columns.front() ? "" : ",") + csv_cell(cell(column));
    }
    text += '\n';
  };
  if (action.headers) add_line([](const CtlField& column) { return std::string{column.name}; });
  for (const CtlJson& row : list) {
    add_line([&](const CtlField& column) { return text_in(action, column, row, ""); });
  }
  return text;
}

std::string json_of(const CtlAction& action, CtlObject object, const Columns& columns,
                    const std::vector<CtlJson>& list) {
  CtlJson rows = CtlJson::array();
  for (const CtlJson& row : list) {
    CtlJson& shown = rows.emplace_back();
    for (const CtlField& column : columns) {
      shown[std::string{column.name}] = value_of(action, column, row);
    }
  }
  const CtlJson all{{std::string{name_of(object)} + 's', std::move(rows)}};
  return all.dump(2, ' ', false, CtlJson::error_handler_t::replace) + "\n";
}

std::string xml_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string{c};
  }
  return escaped;
}

std::string xml_of(const CtlAction& action, CtlObject object, const Columns& columns,
                   const std::vector<CtlJson>& list) {
  const std::string name = name_of(object);
  std::string text = "<" + name + "s>\n";
  for (const CtlJson& row : list) {
    text += "  <" + name + ">\n";
    for (const CtlField& column : columns) {
      const std::string field{column.name};
      text +=
          "    <" + field + ">" + xml_text(text_in(action, column, row, "")) + "</" + field + ">\n";
    }
    text += "  </" + name + ">\n";
  }
  return text + "</" + name + "s>\n";
}

std::string for_programs(const CtlAction& action, CtlObject object, const Columns& columns,
                         const std::vector<CtlJson>& list) {
  if (action.format == CtlFormat::csv) return csv_of(action, columns, list);
  if (action.format == CtlFormat::xml) return xml_of(action, object, columns, list);
  return json_of(action, object, columns, list);
}

// ---- show ---------------------------------------------------------------------------------------

constexpr const char* kDeviceNames[] = {"mapping_path", "devname", "devpath", "uuid", "program"};
constexpr const char* kSessionNames[] = {"sessname", "srvname"};
constexpr const char* kPathNames[] = {"pathname", "dst_addr", "src_addr"};

std::span<const char* const> naming_fields(CtlObject object) {
  if (object == CtlObject::device) return kDeviceNames;
  if (object == CtlObject::session) return kSessionNames;
  return kPathNames;
}

std::vector<CtlJson> named(const CtlInventory& inventory, CtlObject object,
                           const std::string& name) {
  std::vector<CtlJson> found;
  for (const CtlJson& row : inventory.of(object)) {
    const auto is_it = [&](const char* field) { return row[field] == name; };
    if (std::ranges::any_of(naming_fields(object), is_it)) found.push_back(row);
  }
  return found;
}

/// The kind of thing that has the name.
Or<CtlObject> object_named(const CtlAction& action, const CtlInventory& inventory) {
  const std::string& name = action.names.front();
  std::vector<CtlObject> objects;
  for (const CtlObject object : kObjectsOfList) {
    if (action.object && *action.object != object) continue;
    if (!named(inventory, object, name).empty()) objects.push_back(object);
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
  const std::vector<CtlJson> list = named(inventory, *object, action.names.front());
  const auto columns = columns_of(action, *object, list, /*all=*/true);
  if (!columns) return tl::unexpected(columns.error());
  return action.format == CtlFormat::table ? cards_of(action, *columns, list)
                                           : for_programs(action, *object, *columns, list);
}

}  // namespace rnbd
