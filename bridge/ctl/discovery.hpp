// SPDX-License-Identifier: BSD-3-Clause
// A server's directory as `rnbd-ctl discover` shows it, and the changes between two looks.
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
  std::vector<std::string> paths;  ///< addresses that the server advertises
  std::vector<Export> exports;
  friend bool operator==(const CtlDiscovery&, const CtlDiscovery&) = default;
};

/// The whole directory, with end of line. JSON has one line.
std::string text_of(const CtlDiscovery& discovery, CtlFormat format);

/// A line for each entry that is new (+), gone (-) or changed (~); "": no change.
std::string changes_between(const CtlDiscovery& before, const CtlDiscovery& now);

}  // namespace rnbd
