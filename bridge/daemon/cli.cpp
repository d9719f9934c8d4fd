// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/cli.hpp"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <charconv>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

#include "bridge/protocol/closest.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

/// Options with their explanation below them, for terminals of 80 columns.
class NarrowFormatter final : public CLI::Formatter {
 public:
  std::string make_option(const CLI::Option* option, bool) const override {
    constexpr std::size_t kWidth = 78;
    const std::string indent(6, ' ');
    std::string text = "  " + option->get_name(false, true);
    if (!option->get_type_name().empty()) text += " " + option->get_type_name();
    std::istringstream words{option->get_description()};
    std::string line = indent;
    for (std::string word; words >> word;) {
      if (line.size() + 1 + word.size() > kWidth) {
        text += "\n" + line;
        line = indent;
      }
      line += (line == indent ? "" : " ") + word;
    }
    return text + "\n" + line + "\n";
  }
};

/// "--exprot" -> "; did you mean --export?"
std::string guess_option(const CLI::App& app, const std::string& given) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::string guess = closest(given.substr(0, given.find('=')), names);
  return guess.empty() ? "" : "; did you mean " + guess + "?";
}

/// The option that an argument stands for, if it is one: "--lanes", "--lanes=3", "-l".
const CLI::Option* option_in(const CLI::App& app, std::string_view argument) {
  if (!argument.starts_with('-') || argument == "-") return nullptr;
  return app.get_option_no_throw(std::string{argument.substr(0, argument.find('='))});
}

/// "" or the lack of an option's value. It is checked here, because CLI11 would take the next
/// argument as the value.
std::string complaint_about_missing_value(const CLI::App& app, int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument{argv[i]};
    if (argument == "--") break;
    const CLI::Option* option = option_in(app, argument);
    if (option == nullptr || option->get_items_expected_min() == 0) continue;
    const std::size_t equals = argument.find('=');
    const std::string name{argument.substr(0, equals)};
    const std::string missing =
        name + ": the value is missing; write " + name + " " + option->get_type_name();
    if (equals != std::string_view::npos) {
      if (equals + 1 == argument.size()) return missing;
      continue;
    }
    if (++i == argc || *argv[i] == '\0') return missing;
    if (option_in(app, argv[i]) != nullptr) {
      return missing + " (behind it is the option " + argv[i] + ")";
    }
  }
  return "";
}

/// CLI11's message, in words for users.
std::string text_of(const CLI::App& app, const CLI::ParseError& error) {
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    return text.substr(0, text.find(':')) + ": may be given only once";
  }
  constexpr std::string_view kConversion = "Could not convert: ";
  const std::size_t equals = text.find(" = ");
  if (!text.starts_with(kConversion) || equals == std::string::npos) return text;
  const std::string name = text.substr(kConversion.size(), equals - kConversion.size());
  const CLI::Option* option = option_in(app, name);
  const bool is_switch = option != nullptr && option->get_items_expected_min() == 0;
  return name + ": '" + text.substr(equals + 3) + "' is " +
         (is_switch ? "no value for it; leave it out" : "not a number");
}

}  // namespace

std::string complaint_about_number(const std::string& text, unsigned least, unsigned most) {
  unsigned number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc{} && rest == end && number >= least && number <= most) return "";
  return "'" + text + "' is not a number from " + std::to_string(least) + " to " +
         std::to_string(most);
}

EarlyExit usage_error(const CLI::App& app, const std::string& text) {
  return {2,
          app.get_name() + ": " + on_one_line(text) + "\nTry '" + app.get_name() + " --help'.\n"};
}

std::optional<EarlyExit> parse_arguments(CLI::App& app, const std::string& examples,
                                         const std::string& stray, int argc,
                                         const char* const* argv) {
  app.set_version_flag("--version", app.get_name() + " " RNBDKIT_VERSION,
                       "Print the version and exit.");
  app.set_help_flag("-h,--help", "Print this help and exit.");
  app.footer(examples);
  app.formatter(std::make_shared<NarrowFormatter>());
  app.allow_extras();  // reported here, with a guess
  const std::string missing = complaint_about_missing_value(app, argc, argv);
  if (!missing.empty()) return usage_error(app, missing);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return EarlyExit{0, app.help()};
  } catch (const CLI::CallForVersion& version) {
    return EarlyExit{0, std::string{version.what()} + "\n"};
  } catch (const CLI::ParseError& error) {
    return usage_error(app, text_of(app, error));
  }
  const std::vector<std::string> extras = app.remaining();
  if (extras.empty()) return std::nullopt;
  const std::string& first = extras.front();
  if (!first.starts_with('-')) {
    return usage_error(app, "unexpected argument '" + first + "'; " + stray);
  }
  return usage_error(app, "unknown option '" + first + "'" + guess_option(app, first));
}

std::string complaint_about_number_of_ready_fd(const CLI::App& app, int fd) {
  if (app.count("--ready-fd") == 0 || fd >= 0) return "";
  return "--ready-fd: '" + std::to_string(fd) +
         "' is not a file descriptor; write e.g. --ready-fd 3 3>ready";
}

}  // namespace rnbd
