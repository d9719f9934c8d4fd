#include "bridge/daemon/cli.hpp"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>
#include <sstream>
#include <vector>

#include "bridge/client/closest.hpp"
#include "bridge/daemon/settings.hpp"

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

}  // namespace

EarlyExit usage_error(const CLI::App& app, const std::string& text) {
  return {2, app.get_name() + ": " + text + "\nTry '" + app.get_name() + " --help'.\n"};
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return EarlyExit{0, app.help()};
  } catch (const CLI::CallForVersion& version) {
    return EarlyExit{0, std::string{version.what()} + "\n"};
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error.what());
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
