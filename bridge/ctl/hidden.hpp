// SPDX-License-Identifier: BSD-3-Clause
// The programs of rnbdkit that run on this machine: those found by their control sockets, and those
// that are hidden, and cannot be asked.
#pragma once

#include <string>
#include <vector>

namespace rnbd {

/// A program that can be asked.
struct CtlProgram {
  std::string name;    ///< disk0 for /run/rnbd/disk0.control and /run/rnbd-bridge/disk0/control
  std::string socket;  ///< its control socket
};

/// All programs, in the order of their sockets: /run/rnbd/NAME.control, /run/rnbd/map/NAME.control,
/// /run/rnbd-bridge/NAME/control and /run/rnbd-server/control, below `root`. Sockets of programs
/// that have ended are included.
std::vector<CtlProgram> find_programs(const std::string& root);

/// A folder into which this user may not look, so that what is there is not known.
struct CtlClosedFolder {
  std::string path;
  bool of_server = false;  ///< no bridge's or plugin's socket is there
};
std::vector<CtlClosedFolder> find_closed_folders(const std::string& root);

/// The folders of these sockets, for people.
std::string places_of_programs(const std::string& root);

/// A program that runs without a socket that is found.
struct HiddenProgram {
  bool server = false;
  std::string text;         ///< who it is, and what to do about it
  std::string socket = {};  ///< its control socket, which is elsewhere; "": none is found
  bool is_bridge = false;   ///< which will have none that is found
  /// It runs in a container: its paths are others, and its machine is asked there. No text then.
  bool contained = false;
  std::string process = {};  ///< its number here
};

/// Processes that have none of the sockets of `known`, by /proc below `root`. Those of other users
/// are not looked into, unless root asks: their arguments tell a server's. Source: proc(5),
/// net/unix; NSpid in status.
std::vector<HiddenProgram> find_hidden_programs(const std::string& root,
                                                const std::vector<CtlProgram>& known);

}  // namespace rnbd
