// SPDX-License-Identifier: BSD-3-Clause
// One question to a control socket, and the fields of its answer.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <tl/expected.hpp>

namespace rnbd {

using CtlJson = nlohmann::ordered_json;

/// Longer than any command takes.
constexpr std::chrono::seconds kCtlPatience{30};

struct CtlTrouble {
  int error = 0;     ///< errno
  std::string text;  ///< the remedy, without the name of the socket
};

/// Sends a line to a control socket and returns the answer, both without end of line. Gives up
/// after `patience` without progress.
tl::expected<std::string, CtlTrouble> ask_control_socket(
    const std::string& path, std::string line, std::chrono::seconds patience = kCtlPatience);

/// An answer of a program, which may be any program. Null: it is no JSON object as those of rnbdkit
/// have them, in which `devices`, `disks`, `paths`, `sessions` and `exports` are lists of objects.
CtlJson parse_answer(const std::string& answer);

/// The reason why a program refuses, in its own words.
std::string message_of(const CtlJson& answer);

/// The value of a field; null if the object has none.
CtlJson said(const CtlJson& object, const char* name);
/// The value as it is meant to be; "", 0 or an empty list if it is something else.
std::string said_text(const CtlJson& object, const char* name);
std::uint64_t said_number(const CtlJson& object, const char* name);
const CtlJson& said_list(const CtlJson& object, const char* name);

}  // namespace rnbd
