// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/listing.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <utility>

#include "bridge/ctl/listing_columns.hpp"
#include "bridge/ctl/listing_programs.hpp"
#include "bridge/ctl/reports.hpp"

namespace rnbd {
namespace {

using Columns = CtlColumns;
using Cells = std::vector<std::string>;
template <class Value>
using Or = tl::expected<Value, std::string>;

constexpr std::size_t kGap = 2;  ///< blanks between columns
constexpr std::array kObjectsOfList{CtlObject::device, CtlObject::session, CtlObject::path};

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

Cells cells_of(const CtlAction& action, const Columns& columns, const CtlJson& row) {
  Cells cells;
  for (const CtlField& column : columns) cells.push_back(text_in(action, column, row, "-"));
  return cells;
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
  Cells cells;
  for (const CtlField& column : columns) cells.push_back(text_in(action, column, sums, ""));
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
    rows.push_back(cells_of(action, columns, row));
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
  return action.object == CtlObject::session && row["direction"] == "import" &&
         row["program"] == action.names.front();
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
Or<CtlObject> object_named(const CtlAction& action, const CtlInventory& inventory) {
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

}  // namespace rnbd
