#include "bridge/daemon/config_file.hpp"

#include <toml++/toml.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "bridge/client/closest.hpp"

namespace rnbd {
namespace {

/// Without an exponent, as on the command line: 0.25.
std::string plain_text(double number) {
  std::array<char, 512> text{};  // the longest has 309 digits before the point
  const auto [end, error] =
      std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  return {text.data(), error == std::errc{} ? end : text.data()};
}

/// Walks the document and collects what is wrong with it.
class Reader {
 public:
  explicit Reader(std::string path) : path_{std::move(path)} {}

  tl::expected<Settings, ConfigErrors> read(const toml::table& document) {
    refuse_nul(document);
    if (!errors_.empty()) return tl::unexpected(std::move(errors_));
    for (const auto& [key, node] : document) {
      if (key == "server" && node.is_table()) {
        read_server(*node.as_table());
      } else if (key == "export" && node.is_table()) {
        for (const auto& [name, table] : *node.as_table()) read_export(name, table);
      } else if (key == "server" || key == "export") {
        complain(node, std::string{key.str()},
                 "is a table; write [server] or [export.NAME] on a line of its own");
      } else {
        unknown(key, {"server", "export"}, "the top level");
      }
    }
    if (!errors_.empty()) return tl::unexpected(std::move(errors_));
    return std::move(settings_);
  }

 private:
  /// The system would take what stands before it for the whole.
  void refuse_nul(const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (key.str().find('\0') != std::string_view::npos) {
        errors_.push_back(place(key.source()) + "a key with a NUL inside; remove it");
      }
      refuse_nul(node, std::string{key.str()});
    }
  }

  void refuse_nul(const toml::node& node, const std::string& key) {
    if (const auto* inner = node.as_table()) return refuse_nul(*inner);
    if (const auto* list = node.as_array()) {
      for (const auto& item : *list) refuse_nul(item, key);
    }
    const auto* text = node.as_string();
    if (text != nullptr && text->get().find('\0') != std::string::npos)
      complain(node, key, "has a NUL inside; remove it");
  }

  void read_server(const toml::table& table) {
    for (const auto& [key, node] : table) {
      if (key == "listen") {
        read_listen(node);
        continue;
      }
      const SettingRule* rule = find_rule(key);
      if (rule == nullptr) {
        std::vector<std::string> known{"listen"};
        for (const SettingRule& each : setting_rules()) known.emplace_back(each.key);
        unknown(key, known, "[server]");
        continue;
      }
      const auto text = text_of(node, rule->value_name == nullptr);
      const std::string wrong = text ? rule->apply(settings_, *text) : "has the wrong type";
      if (!wrong.empty()) complain(node, rule->key, wrong + "; write e.g. " + example(*rule));
    }
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
        value.find_first_not_of("0123456789") == std::string::npos || rule.value_name == nullptr;
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

  void read_export(const toml::key& name, const toml::node& node) {
    ExportSpecification specification;
    specification.name = name.str();
    const std::string where = "export." + specification.name;
    const auto* table = node.as_table();
    if (table == nullptr)
      return complain(node, where,
                      "is a table; write [" + where + "] and below it path = \"/srv/disk.img\"");
    if (const std::string fault = fault_of_name(specification.name); !fault.empty())
      complain(node, where, "the name " + fault);
    const std::size_t errors_before = errors_.size();
    for (const auto& [key, value] : *table) read_export_key(specification, where, key, value);
    const bool has_path = table->contains("path");
    if (has_path == table->contains("storage") && errors_.size() == errors_before) {
      complain(node, where,
               has_path ? "has both path and storage; keep one of them"
                        : "says not what to export; write path = \"/srv/disk.img\" or storage = "
                          "\"memory:64M\"");
    }
    settings_.exports.push_back(std::move(specification));
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
        // A path is never taken for one of the other kinds of storage, whatever is in it.
        const bool plain = target.storage.front() == '/' || target.storage.front() == '.';
        if (key == "path" && !plain) target.storage.insert(0, "./");
      }
    } else if (key == "read-only" || key == "direct") {
      const auto* flag = value.as_boolean();
      if (flag == nullptr)
        return complain(value, where + "." + std::string{key.str()},
                        "is a switch; write " + std::string{key.str()} + " = true");
      (key == "direct" ? target.direct : target.read_only) = flag->get();
    } else {
      unknown(key, {"path", "storage", "description", "read-only", "direct"}, "[" + where + "]");
    }
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
    errors_.push_back(place(key.source()) + text);
  }

  void complain(const toml::node& node, const std::string& key, const std::string& text) {
    errors_.push_back(place(node.source()) + key + ": " + text);
  }

  std::string place(const toml::source_region& source) const {
    return path_ + ":" + std::to_string(source.begin.line) + ":" +
           std::to_string(source.begin.column) + ": ";
  }

  std::string path_;
  Settings settings_;
  ConfigErrors errors_;
};

}  // namespace

tl::expected<Settings, ConfigErrors> parse_config(const std::string& text,
                                                  const std::string& path) {
  try {
    return Reader{path}.read(toml::parse(text, path));
  } catch (const toml::parse_error& error) {
    const auto& at = error.source().begin;
    return tl::unexpected(ConfigErrors{
        path + ":" + std::to_string(at.line) + ":" + std::to_string(at.column) + ": " +
        std::string{error.description()} +
        " (this is TOML: texts stand between quotes, tables are named like [export.disk0])"});
  }
}

tl::expected<Settings, ConfigErrors> load_config(const std::string& path) {
  const auto fail = [&](int error) {
    return tl::unexpected(ConfigErrors{path + ": " + std::strerror(error) +
                                       "; name a readable configuration file behind --config"});
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return fail(EISDIR);
  errno = 0;
  std::ifstream file{path, std::ios::binary};
  if (!file) return fail(errno != 0 ? errno : EIO);
  const std::string text{std::istreambuf_iterator<char>{file}, {}};
  if (file.bad()) return fail(EIO);
  return parse_config(text, path);
}

}  // namespace rnbd
