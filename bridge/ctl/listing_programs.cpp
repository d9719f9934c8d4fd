// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/listing_programs.hpp"

#include <utility>

namespace rnbd {
namespace {

/// Source: RFC 4180.
std::string csv_cell(const std::string& text) {
  if (text.find_first_of(",\"") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string{c};
  return quoted + '"';
}

std::string csv_of(const CtlAction& action, const CtlColumns& columns,
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

std::string json_of(const CtlAction& action, CtlObject object, const CtlColumns& columns,
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

std::string xml_of(const CtlAction& action, CtlObject object, const CtlColumns& columns,
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

}  // namespace

std::string for_programs(const CtlAction& action, CtlObject object, const CtlColumns& columns,
                         const std::vector<CtlJson>& list) {
  if (action.format == CtlFormat::csv) return csv_of(action, columns, list);
  if (action.format == CtlFormat::xml) return xml_of(action, object, columns, list);
  return json_of(action, object, columns, list);
}

}  // namespace rnbd
