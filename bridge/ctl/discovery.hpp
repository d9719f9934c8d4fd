// SPDX-License-Identifier: BSD-3-Clause
// A server's directory as `rnbd-ctl discover` shows it, and the changes of one that is watched.
#pragma once

#include <string>
#include <vector>

#include "bridge/ctl/words.hpp"
#include "bridge/protocol/directory.hpp"

namespace rnbd {

struct CtlDiscovery {
  struct Export {
    wire::DirectoryEntry entry;  ///< an export or a referral
    std::string used_by = {};    ///< its writer, for people; "": nobody
    friend bool operator==(const Export&, const Export&) = default;
  };
  std::vector<std::string> paths;  ///< that the server advertises
  std::vector<Export> exports;
  friend bool operator==(const CtlDiscovery&, const CtlDiscovery&) = default;
};

/// All of it, with an end of line. JSON has one line.
std::string text_of(const CtlDiscovery& discovery, CtlFormat format);

/// A line for each thing that has come (+), has gone (-) or is another one (~); "": nothing is.
std::string changes_between(const CtlDiscovery& before, const CtlDiscovery& now);

}  // namespace rnbd
