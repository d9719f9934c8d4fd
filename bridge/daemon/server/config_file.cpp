// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/config_file.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>
#include <vector>

#include "bridge/daemon/server/rights_check.hpp"
#include "bridge/daemon/server/unclosed_text.hpp"
#include "bridge/protocol/closest.hpp"

namespace rnbd {
namespace {

/// Without an exponent, as on the command line: 0.25.
std::string plain_text(double number) {
  std::array<char, 512> text{};  // the longest has 309 digits before the point
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  return {text.data(), error == std::errc{} ? end : text.data()};
}

ConfigMistake mistake_at(const std::string& path, const toml::source_position& at,
                         const std::string& text) {
  return {at.line, at.column,
          path + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " + text};
}

ConfigMistake mistake_at(const std::string& path, const toml::source_region& source,
                         const std::string& text) {
  return mistake_at(path, source.begin, text);
}

std::string complaint_about(const UnclosedText& text) {
  const std::string says =
      "the text that begins here has no closing quote; end it with " + text.end;
  if (text.end.size() > 1) return says;
  return says + " in the same line" +
         (text.escaped_quote ? R"(, and write \\ for a backslash)" : "");
}

/// Where a text has no end, the parser complains of the lines that it takes for part of it.
ConfigMistake mistake_of(const std::string& path, const toml::parse_error& error,
                         std::string_view document) {
  const toml::source_position& at = error.source().begin;
  if (const auto text = find_unclosed_text(document)) {
    const toml::source_position begin{text->line, text->column};
    const bool is_it = begin <= at && (text->end.size() > 1 || begin.line == at.line);
    if (is_it) return mistake_at(path, begin, complaint_about(*text));
  }
  return mistake_at(
      path, at,
      std::string{error.description()} +
          " (this is TOML: texts stand between quotes, tables are named like [export.disk0])");
}

/// Walks the document and collects its mistakes.
class Reader {
 public:
  explicit Reader(std::string path) : path_{std::move(path)} {}

  tl::expected<Settings, BadConfig> read(const toml::table& document) {
    refuse_nul(document);
    if (!mistakes_.empty()) return tl::unexpected(BadConfig{std::move(mistakes_), {}});
    for (const auto& [key, node] : document) {
      if (key == "server" && node.is_table()) {
        read_server(*node.as_table());
      } else if (key == "export" && node.is_table()) {
        read_exports(*node.as_table());
      } else if (key == "referral" && node.is_table()) {
        for (const auto& [name, table] : *node.as_table()) read_referral(name, table);
      } else if (key == "search" && node.is_table()) {
        read_search(*node.as_table());
      } else if (key == "server" || key == "export" || key == "referral" || key == "search") {
        complain(node, std::string{key.str()},
                 "is a table; write [server], [search], [export.NAME] or [referral.NAME] on a line "
                 "of its own");
      } else {
        unknown(key, {"server", "export", "referral", "search"}, "the top level");
      }
    }
    if (search_path_ != nullptr && settings_.search_path != search_path_->as_string()->get()) {
      complain(*search_path_, "search.path",
               "names another directory than search-path of [server]; write only one of them");
    }
    if (mistakes_.empty()) return std::move(settings_);
    std::ranges::stable_sort(mistakes_, [](const auto& a, const auto& b) {
      return std::pair{a.line, a.column} < std::pair{b.line, b.column};
    });
    return tl::unexpected(BadConfig{std::move(mistakes_), std::move(settings_)});
  }

 private:
  /// The system would take the part before it for the whole. Tables may be nested as deep as a
  /// file is long.
  void refuse_nul(const toml::table& document) {
    std::vector<const toml::table*> tables{&document};
    while (!tables.empty()) {
      const toml::table& table = *tables.back();
      tables.pop_back();
      for (const auto& [key, node] : table) {
        if (has_nul(key.str())) {
          mistakes_.push_back(
              mistake_at(path_, key.source(), "a key with a NUL inside; remove it"));
        }
        refuse_nul_in(node, key);
        if (const auto* inner = node.as_table()) tables.push_back(inner);
      }
    }
  }

  void refuse_nul_in(const toml::node& node, const toml::key& key) {
    const auto refuse = [&](const toml::node& value) {
      const auto* text = value.as_string();
      if (text != nullptr && has_nul(text->get()))
        complain(value, std::string{key.str()}, "has a NUL inside; remove it");
    };
    refuse(node);
    if (const auto* list = node.as_array()) {
      for (const auto& item : *list) refuse(item);
    }
  }

  static bool has_nul(std::string_view text) { return text.find('\0') != std::string_view::npos; }

  void read_server(const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (key == "listen") {
        read_listen(node);
        continue;
      }
      if (key == "advertise") {
        read_advertise(node);
        continue;
      }
      const SettingRule* rule = find_rule(key);
      if (rule == nullptr) {
        std::vector<std::string> known{"listen", "advertise"};
        for (const SettingRule& each : setting_rules()) known.emplace_back(each.key);
        unknown(key, known, "[server]");
        continue;
      }
      const auto text = text_of(node, rule->value == nullptr);
      const std::string wrong = text ? rule->apply(settings_, *text) : "has the wrong type";
      if (!wrong.empty()) complain(node, rule->key, wrong + "; write e.g. " + example(*rule));
    }
  }

  void read_search(const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (key == "rw" || key == "ro") {
        read_rights(settings_.search_rights, "search", key, node);
      } else if (key == "path") {
        const auto* text = node.as_string();
        if (text == nullptr || text->get().empty()) {
          complain(node, "search.path", "is a string; write e.g. path = \"/srv/rnbd\"");
        } else {
          settings_.search_path = text->get();
          search_path_ = &node;
        }
      } else {
        unknown(key, {"path", "rw", "ro"}, "[search]");
      }
    }
  }

  /// A string, or a list of strings. An empty list is a mistake, because it would name no user.
  void read_rights(Rights& target, const std::string& where, const toml::key& key,
                   const toml::node& node) {
    read_patterns(key == "rw" ? target.rw : target.ro, where, key, node);
  }

  void read_patterns(std::vector<std::string>& patterns, const std::string& where,
                     const toml::key& key, const toml::node& node) {
    const std::string word{key.str()};
    const auto read_one = [&](const toml::node& item) {
      const auto* text = item.as_string();
      const std::string wrong =
          text == nullptr ? "is a list of strings" : add_patterns(patterns, text->get());
      if (!wrong.empty()) {
        complain(item, where + "." + word, wrong + "; write e.g. " + word + " = [\"host1\"]");
      }
    };
    const auto* list = node.as_array();
    if (list == nullptr) return read_one(node);
    if (list->empty()) {
      complain(node, where + "." + word, "is empty; leave it out, or name a user");
    }
    for (const auto& item : *list) read_one(item);
  }

  static const SettingRule* find_rule(const toml::key& key) {
    for (const SettingRule& rule : setting_rules()) {
      if (key == rule.key) return &rule;
    }
    return nullptr;
  }

  static std::string example(const SettingRule& rule) {
    const std::string value = rule.example;
    const bool bare =
        value.find_first_not_of("0123456789") == std::string::npos || rule.value == nullptr;
    return std::string{rule.key} + " = " + (bare ? value : "\"" + value + "\"");
  }

  /// Numbers may be written as numbers, all else but switches as strings.
  static std::optional<std::string> text_of(const toml::node& node, bool is_switch) {
    if (const auto* flag = node.as_boolean(); flag != nullptr && is_switch)
      return flag->get() ? "true" : "false";
    if (is_switch) return std::nullopt;
    if (const auto* text = node.as_string()) return text->get();
    if (const auto* number = node.as_integer()) return std::to_string(number->get());
    if (const auto* number = node.as_floating_point()) return plain_text(number->get());
    return std::nullopt;
  }

  void read_listen(const toml::node& node) {
    if (const auto* list = node.as_array()) {
      for (const auto& item : *list) read_address(item);
    } else {
      read_address(node);
    }
  }

  void read_address(const toml::node& node) {
    const auto* text = node.as_string();
    if (text == nullptr)
      return complain(node, "listen",
                      "is a string or a list of strings; write e.g. listen = "
                      "[\"tcp:127.0.0.1:1234\"]");
    const auto address = parse_listen(text->get());
    if (!address) return complain(node, "listen", address.error());
    settings_.listen.push_back(*address);
  }

  void read_advertise(const toml::node& node) {
    const auto read_one = [&](const toml::node& item) {
      const auto* text = item.as_string();
      const std::string wrong = text == nullptr
                                    ? "is a string or a list of strings; write e.g. advertise = "
                                      "[\"tcp:192.0.2.1:1234\"]"
                                    : add_advertised(settings_.directions, text->get());
      if (!wrong.empty()) complain(item, "advertise", wrong);
    };
    const auto* list = node.as_array();
    if (list == nullptr) return read_one(node);
    for (const auto& item : *list) read_one(item);
  }

  void read_referral(const toml::key& name, const toml::node& node) {
    Referral referral;
    referral.name = name.str();
    referral.place = mistake_at(path_, name.source(), "").text;
    const std::string where = "referral." + referral.name;
    const std::string example = "server = \"rnbd+tcp://192.0.2.2/disk0\"";
    const auto* table = node.as_table();
    if (table == nullptr) {
      return complain(node, where, "is a table; write [" + where + "] and below it " + example);
    }
    if (const std::string fault = fault_of_name(referral.name); !fault.empty())
      complain(node, where, "the name " + fault);
    for (const auto& [key, value] : *table) {
      if (key == "server") {
        const auto* text = value.as_string();
        const std::string wrong = text == nullptr ? "is a string; write e.g. " + example
                                                  : set_referral(referral, text->get());
        if (!wrong.empty()) complain(value, where + ".server", wrong);
      } else if (key == "users") {
        read_patterns(referral.rights.ro, where, key, value);
      } else {
        unknown(key, {"server", "users"}, "[" + where + "]");
      }
    }
    if (!table->contains("server")) {
      complain(node, where, "says not which server has it; write " + example);
    }
    settings_.directions.referrals.push_back(std::move(referral));
  }

  /// In the order of the file: tables have that of their keys.
  void read_exports(const toml::table& tables) {
    std::vector<std::pair<const toml::key*, const toml::node*>> exports;
    exports.reserve(tables.size());
    for (const auto& [name, node] : tables) exports.emplace_back(&name, &node);
    std::ranges::stable_sort(exports, {},
                             [](const auto& each) { return each.first->source().begin.line; });
    settings_.exports.reserve(exports.size());
    for (const auto& [name, node] : exports) read_export(*name, *node);
  }

  void read_export(const toml::key& name, const toml::node& node) {
    ExportSpecification specification;
    specification.name = name.str();
    specification.line = name.source().begin.line;
    specification.place = mistake_at(path_, name.source(), "").text;
    const std::string where = "export." + specification.name;
    const auto* table = node.as_table();
    if (table == nullptr)
      return complain(node, where,
                      "is a table; write [" + where + "] and below it path = \"/srv/disk.img\"");
    const std::size_t mistakes_before = mistakes_.size();
    if (const std::string fault = fault_of_name(specification.name); !fault.empty())
      complain(node, where, "the name " + fault);
    for (const auto& [key, value] : *table) read_export_key(specification, where, key, value);
    const bool has_path = table->contains("path");
    if (has_path == table->contains("storage") && mistakes_.size() == mistakes_before) {
      complain(node, where,
               has_path ? "has both path and storage; keep one of them"
                        : "says not what to export; write path = \"/srv/disk.img\" or storage = "
                          "\"memory:64M\"");
    }
    if (mistakes_.size() == mistakes_before) settings_.exports.push_back(std::move(specification));
  }

  void read_export_key(ExportSpecification& target, const std::string& where, const toml::key& key,
                       const toml::node& value) {
    if (key == "path" || key == "storage" || key == "description") {
      const auto* text = value.as_string();
      if (text == nullptr || (text->get().empty() && key != "description")) {
        return complain(value, where + "." + std::string{key.str()},
                        "is a string; write e.g. " + std::string{key.str()} +
                            (key == "storage" ? " = \"memory:64M\"" : " = \"/srv/disk.img\""));
      }
      if (key == "description") {
        target.description = text->get();
      } else {
        target.storage = text->get();
        // A path is never taken for one of the other kinds of storage, with any characters in it.
        const bool plain = target.storage.front() == '/' || target.storage.front() == '.';
        if (key == "path" && !plain) target.storage.insert(0, "./");
      }
    } else if (key == "read-only" || key == "direct") {
      const auto* flag = value.as_boolean();
      if (flag == nullptr)
        return complain(value, where + "." + std::string{key.str()},
                        "is a switch; write " + std::string{key.str()} + " = true");
      (key == "direct" ? target.direct : target.read_only) = flag->get();
    } else if (key == "iops-limit" || key == "bandwidth-limit") {
      read_limit(target.limits, where, key, value);
    } else if (key == "rw" || key == "ro") {
      read_rights(target.rights, where, key, value);
    } else {
      unknown(key,
              {"path", "storage", "description", "read-only", "direct", "rw", "ro", "iops-limit",
               "bandwidth-limit"},
              "[" + where + "]");
    }
  }

  void read_limit(Limits& target, const std::string& where, const toml::key& key,
                  const toml::node& value) {
    const bool is_iops = key == "iops-limit";
    const auto text = text_of(value, false);
    const std::string wrong = !text     ? "has the wrong type"
                              : is_iops ? set_iops_limit(target, *text)
                                        : set_bandwidth_limit(target, *text);
    if (wrong.empty()) return;
    complain(value, where + "." + std::string{key.str()},
             wrong + "; write e.g. " +
                 (is_iops ? "iops-limit = 1000" : "bandwidth-limit = \"100M\"") +
                 ", or leave it out for no limit");
  }

  void unknown(const toml::key& key, const std::vector<std::string>& known,
               const std::string& where) {
    const std::string word{key.str()};
    const std::string guess = closest(word, known);
    std::string text = "unknown key '" + word + "' in " + where + "; ";
    if (!guess.empty()) {
      text += "did you mean '" + guess + "'?";
    } else {
      text += "known are:";
      for (const std::string& each : known) text += " " + each;
    }
    add(key.source(), text);
  }

  void complain(const toml::node& node, const std::string& key, const std::string& text) {
    add(node.source(), key + ": " + text);
  }

  void add(const toml::source_region& source, const std::string& text) {
    mistakes_.push_back(mistake_at(path_, source, text));
  }

  std::string path_;
  const toml::node* search_path_ = nullptr;  ///< of [search]
  Settings settings_;
  std::vector<ConfigMistake> mistakes_;
};

}  // namespace

tl::expected<Settings, BadConfig> parse_config(const std::string& text, const std::string& path) {
  try {
    return Reader{path}.read(toml::parse(text, path));
  } catch (const toml::parse_error& error) {
    return tl::unexpected(BadConfig{{mistake_of(path, error, text)}, {}});
  }
}

tl::expected<Settings, BadConfig> load_config(const std::string& path) {
  constexpr std::size_t kMostBytes = std::size_t{16} << 20;  // devices may have no end at all
  const auto fail = [&](int error) {
    const std::string text =
        path + ": " + std::strerror(error) + "; name a readable configuration file behind --config";
    return tl::unexpected(BadConfig{{{.text = text}}, {}, /*unreadable=*/true});
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return fail(EISDIR);
  errno = 0;
  std::ifstream file{path, std::ios::binary};
  if (!file) return fail(errno != 0 ? errno : EIO);
  std::string text;
  std::array<char, 65536> part{};
  do {
    file.read(part.data(), part.size());
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
  } while (file && text.size() <= kMostBytes);
  if (file.bad()) return fail(EIO);
  if (text.size() > kMostBytes) return fail(EFBIG);
  return parse_config(text, path);
}

}  // namespace rnbd
