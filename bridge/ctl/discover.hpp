// SPDX-License-Identifier: BSD-3-Clause
// rnbd-ctl discover: lists the exports of a server. It needs no running program on this machine.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bridge/ctl/words.hpp"
#include "bridge/protocol/directory.hpp"

namespace rnbd {

/// A server's directory.
struct CtlDiscovery {
  struct Export {
    wire::DirectoryEntry entry;  ///< an export or a referral
    std::string used_by = {};    ///< its writer, for people; "": nobody
    friend bool operator==(const Export&, const Export&) = default;
  };
  std::vector<std::string> paths;  ///< addresses that the server advertises
  std::vector<Export> exports;
  friend bool operator==(const CtlDiscovery&, const CtlDiscovery&) = default;
};

/// The whole directory, with end of line. JSON has one line.
std::string text_of(const CtlDiscovery& discovery, CtlFormat format);

/// A line for each entry that is new (+), gone (-) or changed (~); "": no change.
std::string changes_between(const CtlDiscovery& before, const CtlDiscovery& now);

/// Runs the command if the first argument names it, and returns the exit status.
std::optional<int> run_discover(int argc, const char* const* argv);

}  // namespace rnbd
