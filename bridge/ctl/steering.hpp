// SPDX-License-Identifier: BSD-3-Clause
// Sessions and paths of running programs: which command of which program does what was asked for.
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/ctl/inventory.hpp"
#include "bridge/ctl/output.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {

/// `add`, `delete`, `readd`, `disconnect`, `reconnect`, `recover` and `close`. Paths that are told
/// to connect are waited for, and it fails if one of them does not.
CtlOutcome steer(const CtlAction& action);

/// A line for a control socket.
struct CtlStep {
  std::string socket;
  std::string line;
  friend bool operator==(const CtlStep&, const CtlStep&) = default;
};

/// The steps of `add`, `delete`, `readd`, `disconnect`, `reconnect`, `recover` and `close`, in
/// their order. None: there is nothing to do. `kernel_devices`: names of devices that sessions may
/// be called by. Pure.
///
/// Errors: a sentence when nothing has the name, or several things have it.
tl::expected<std::vector<CtlStep>, std::string> steps_of(
    const CtlAction& action, const std::vector<CtlReport>& reports,
    const std::vector<KernelDevice>& kernel_devices = {});

/// A sentence about a step that takes something away and has been taken: what has gone,
/// and whether it comes again. `reports` are from before, `answer` is the program's. "": the step
/// brings something. Pure.
std::string told_of(const CtlStep& step, const std::vector<CtlReport>& reports,
                    const CtlJson& answer);

/// A path that has been told to connect.
struct CtlAwaited {
  std::string socket, session, path;
  friend bool operator==(const CtlAwaited&, const CtlAwaited&) = default;
};

/// The paths that these steps connect, without those that are taken away again. Pure.
std::vector<CtlAwaited> awaited_paths(const std::vector<CtlStep>& steps,
                                      const std::vector<CtlReport>& reports);

/// The state of such a path, by its program's answer to `status`.
enum class CtlProgress : std::uint8_t { connected, under_way, idle, gone };
struct CtlPathNews {
  CtlProgress progress = CtlProgress::gone;
  std::string trouble = {};  ///< of the last attempt; "": none
};
/// Pure.
CtlPathNews news_of_path(const CtlJson& status, const std::string& path);

/// The reports of clients whose session has no path in service after these steps, while it had one
/// that is or may be connected. Pure.
std::vector<CtlReport> cut_off_by(const std::vector<CtlStep>& steps,
                                  const std::vector<CtlReport>& reports);

/// The devices of clients that no path brings back, as rows: those that a program, a session, an
/// export or a kernel's device of this name has, or "all". Pure.
std::vector<CtlJson> closed_devices(const std::string& name, const std::vector<CtlReport>& reports,
                                    const std::vector<KernelDevice>& kernel_devices);
/// The reason why such a device is closed, and how it comes back. Pure.
std::string remedy_for_closed(const CtlJson& row);
/// A sentence about each of these devices: paths do not bring them back. Pure.
std::vector<std::string> told_of_closed(const std::vector<CtlJson>& rows);
/// The reports of the programs that these steps are for. Pure.
std::vector<CtlReport> reports_of(const std::vector<CtlStep>& steps,
                                  const std::vector<CtlReport>& reports);

/// The client programs whose session is called so, by their names. Pure.
std::vector<std::string> programs_of_session(const std::string& session,
                                             const std::vector<CtlReport>& reports);

}  // namespace rnbd
