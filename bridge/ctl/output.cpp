// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/output.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bridge/daemon/cli.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

int unwritten_because = 0;  ///< the errno of the first text that was not written; one thread speaks

void remember(bool written) {
  if (!written && unwritten_because == 0) unwritten_because = errno;
}

using Json = nlohmann::ordered_json;
using Row = std::vector<std::string>;

constexpr std::size_t kColumnGap = 2;  ///< blanks between columns

std::string text_of(const Json& value) {
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  const std::string text = plain_text(value);
  return text.empty() ? "-" : text;
}

/// "[####----------------] 20 %"
std::string bar_of(unsigned percent) {
  constexpr unsigned kWidth = 20;
  const unsigned full = std::min(percent, 100U) * kWidth / 100;
  return "[" + std::string(full, '#') + std::string(kWidth - full, '-') + "] " +
         std::to_string(percent) + " %";
}

std::string cell_of(const std::string& name, const Json& value) {
  const bool progress = name == "progress_percent" && value.is_number_unsigned();
  return progress ? bar_of(value.get<unsigned>()) : text_of(value);
}

/// Columns as wide as their widest text, which counts bytes.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] + kColumnGap - row[i].size(), ' ');
    }
    text += line + "\n";
  }
  return text;
}

bool is_table(const Json& value) {
  return value.is_array() &&
         std::ranges::all_of(value, [](const Json& row) { return row.is_object(); });
}

/// A column for each name that some object of the list has.
std::string table(const Json& list) {
  Row names;
  for (const Json& object : list) {
    for (const auto& [name, value] : object.items()) {
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
    }
  }
  std::vector<Row> rows{names};
  for (std::string& heading : rows[0]) {
    std::ranges::transform(heading, heading.begin(), [](char c) {
      return c == '_' ? '-' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
    });
  }
  for (const Json& object : list) {
    Row& row = rows.emplace_back();
    for (const std::string& name : names) {
      row.push_back(cell_of(name, object.contains(name) ? object[name] : Json{}));
    }
  }
  return aligned(rows);
}

}  // namespace

void say(const std::string& text) {
  const std::string lines = readable_lines(text);
  remember(std::fwrite(lines.data(), 1, lines.size(), stdout) == lines.size());
}

void complain(const std::string& text, const std::string& command) {
  (void)is_written();
  const std::string who = command.empty() ? "rnbd-ctl: " : "rnbd-ctl " + command + ": ";
  std::fputs(readable_lines(who + text + "\n").c_str(), stderr);
}

void clear_terminal() { remember(std::fputs("\033[H\033[2J", stdout) >= 0); }

int leave_early(const EarlyExit& early) {
  if (early.status == 0)
    say(early.text);
  else
    std::fputs(readable_lines(early.text).c_str(), stderr);
  return early.status;
}

bool is_written() {
  remember(std::fflush(stdout) == 0);
  return unwritten_because == 0;
}

int with_output(int status, int unwritten) {
  if (is_written()) return status;
  if (unwritten_because != EPIPE) {  // whoever has closed it knows
    complain(std::string{"not all could be written to standard output: "} +
             std::strerror(unwritten_because));
  }
  return unwritten;
}

void add_complaints(const std::vector<std::string>& sentences, CtlOutcome& outcome) {
  for (const std::string& sentence : sentences) {
    outcome.status = 1;
    outcome.error += (outcome.error.empty() ? "" : "\nrnbd-ctl: ") + readable_text(sentence);
  }
}

std::string in_seconds(double seconds) {
  std::string text = std::to_string(seconds);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.') || text.ends_with(',')) text.pop_back();
  return text + " s";
}

int status_of_failure(const std::vector<std::string>& words, int usual) {
  const bool checks = std::ranges::find(words, "check") != words.end();
  return checks ? static_cast<int>(CtlHealth::unknown) : usual;
}

std::string json_text(const Json& json, int indent) {
  return readable_json(json.dump(indent, ' ', false, Json::error_handler_t::replace)) + "\n";
}

std::string plain_text(const Json& value) {
  return readable_text(value.is_string() ? value.get<std::string>() : value.dump());
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
  return text;
}

std::string readable(const Json& answer) {
  std::vector<Row> lines;
  std::string tables;
  for (const auto& [name, value] : answer.items()) {
    if (!is_table(value)) {
      lines.push_back({name + ":", text_of(value)});
    } else if (!value.empty()) {
      tables += (lines.empty() && tables.empty() ? "" : "\n") + table(value);
    }
  }
  return aligned(lines) + tables;
}

}  // namespace rnbd
