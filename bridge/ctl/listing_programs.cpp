// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/listing_programs.hpp"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

/// Source: RFC 4180.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string{c};
  return quoted + '"';
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (const std::string& cell : cells)
    line += (&cell == &cells.front() ? "" : ",") + csv_cell(cell);
  return line + '\n';
}

std::vector<std::string> names_of(const CtlColumns& columns) {
  std::vector<std::string> names;
  for (const CtlField& column : columns) names.emplace_back(column.name);
  return names;
}

std::vector<std::vector<std::string>> texts_of(const CtlAction& action, const CtlColumns& columns,
                                               const std::vector<CtlJson>& list) {
  std::vector<std::vector<std::string>> rows;
  for (const CtlJson& row : list) {
    std::vector<std::string>& texts = rows.emplace_back();
    for (const CtlField& column : columns) texts.push_back(text_in(action, column, row, ""));
  }
  return rows;
}

CtlJson objects_of(const CtlAction& action, const CtlColumns& columns,
                   const std::vector<CtlJson>& list);

/// The paths of a session, as a list of paths has them.
CtlJson paths_in(const CtlAction& action, const CtlJson& paths) {
  CtlAction of_paths = action;
  of_paths.fields.clear();
  const std::vector<CtlJson> list{paths.begin(), paths.end()};
  const auto columns = columns_of(of_paths, CtlObject::path, list, /*all=*/false);
  return columns ? objects_of(of_paths, *columns, list) : CtlJson::array();
}

CtlJson objects_of(const CtlAction& action, const CtlColumns& columns,
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

std::string json_of(const CtlAction& action, CtlObject object, const CtlColumns& columns,
                    const std::vector<CtlJson>& list) {
  const CtlJson all{{std::string{name_of(object)} + 's', objects_of(action, columns, list)}};
  return readable_json(all.dump(2, ' ', false, CtlJson::error_handler_t::replace)) + "\n";
}

std::string xml_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    escaped += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string{c};
  }
  return escaped;
}

}  // namespace

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

std::string for_programs(const CtlAction& action, CtlObject object, const CtlColumns& columns,
                         const std::vector<CtlJson>& list) {
  if (action.format == CtlFormat::csv) {
    return csv_table(action.headers ? names_of(columns) : std::vector<std::string>{},
                     texts_of(action, columns, list));
  }
  if (action.format == CtlFormat::xml) {
    return xml_table(name_of(object), names_of(columns), texts_of(action, columns, list));
  }
  return json_of(action, object, columns, list);
}

}  // namespace rnbd
