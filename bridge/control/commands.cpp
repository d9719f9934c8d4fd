// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/control/commands.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

namespace rnbd {
namespace {

constexpr std::string_view kBlanks = " \t";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = std::min(text.find_first_not_of(kBlanks), text.size());
  text.remove_prefix(first);
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

/// Text of people and peers may be no UTF-8; invalid bytes are replaced.
std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace

std::string error_answer(int error, const std::string& message) {
  const char* name = strerrorname_np(error);
  return line_of({{"error", name != nullptr ? name : "EIO"}, {"message", message}});
}

std::string ControlCommands::answer(std::string_view line, ControlCaller caller) const {
  line = trimmed(line);
  const std::size_t end = std::min(line.find_first_of(kBlanks), line.size());
  const auto answer =
      run(std::string{line.substr(0, end)}, std::string{trimmed(line.substr(end))}, caller);
  return answer ? line_of(*answer) : error_answer(answer.error().error, answer.error().text);
}

tl::expected<Json, rtrs::Failure> ControlCommands::run(const std::string& name,
                                                       const std::string& argument,
                                                       ControlCaller caller) const {
  const auto invalid = [](std::string text) {
    return tl::unexpected(rtrs::Failure{EINVAL, std::move(text)});
  };
  if (name == "help") return help();
  const auto command = std::ranges::find(commands_, name, &ControlCommand::name);
  if (command == commands_.end()) {
    return invalid("unknown command '" + name + "'; there are " + names());
  }
  const bool optional = command->argument.starts_with('[');
  if (argument.empty() && !command->argument.empty() && !optional) {
    return invalid("write " + name + " " + command->argument);
  }
  if (!argument.empty() && command->argument.empty()) {
    return invalid(name + " takes nothing behind it; leave '" + argument + "' out");
  }
  if (caller == ControlCaller::reader && !command->for_readers) {
    return tl::unexpected(rtrs::Failure{
        EPERM, "only root and the user of this program may " + name + "; the group rnbd may look"});
  }
  return command->run(argument);
}

Json ControlCommands::help() const {
  Json list = Json::array();
  for (const ControlCommand& command : commands_) {
    const std::string form = command.name + (command.argument.empty() ? "" : " ");
    list.push_back({{"command", form + command.argument}, {"help", command.help}});
  }
  return {{"commands", std::move(list)}};
}

std::string ControlCommands::names() const {
  std::string list;
  for (const ControlCommand& command : commands_) list += command.name + ", ";
  return list + "help";
}

}  // namespace rnbd
