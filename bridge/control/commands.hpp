// SPDX-License-Identifier: BSD-3-Clause
// The commands of a control socket: `COMMAND [ARGUMENT]` in, JSON out.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "rdma/failure.hpp"

namespace rnbd {

/// Objects keep the order in which they were filled: people read them.
using Json = nlohmann::ordered_json;

/// `{"error":"ENOENT","message":"..."}`
std::string error_answer(int error, const std::string& message);

/// The rights of a caller.
enum class ControlCaller : std::uint8_t {
  owner,   ///< root, or the user of the program
  reader,  ///< a member of the group rnbd; may look but not change anything
};

struct ControlCommand {
  std::string name;
  std::string argument;  ///< the argument in the help; "" = none; "[...]" = optional
  std::string help;
  /// `argument` is the rest of the line, or "". Returns an object, which may be empty.
  std::function<tl::expected<Json, rtrs::Failure>(const std::string& argument)> run;
  bool for_readers = false;  ///< it changes nothing
};

/// Finds the command of a line and runs it. The command `help` lists all commands.
///
/// Threads: those of its commands.
class ControlCommands {
 public:
  explicit ControlCommands(std::vector<ControlCommand> commands) : commands_{std::move(commands)} {}

  /// One line of JSON without its end: the command's answer, or error_answer().
  std::string answer(std::string_view line, ControlCaller caller) const;

 private:
  tl::expected<Json, rtrs::Failure> run(const std::string& name, const std::string& argument,
                                        ControlCaller caller) const;
  Json help() const;
  std::string names() const;

  std::vector<ControlCommand> commands_;
};

}  // namespace rnbd
