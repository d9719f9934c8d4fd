// SPDX-License-Identifier: BSD-3-Clause
// The files of the disks that one bridge serves.
#pragma once

#include <set>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/daemon/bridge/options.hpp"

namespace rnbd {

/// Threads: any; each call reads the files anew.
class DiskFiles {
 public:
  /// `key`: see bridge_key(). Of two files with a name that of the last folder counts.
  DiskFiles(std::string key, std::vector<std::string> folders);

  /// The disks whose files name this bridge.
  std::set<std::string> names() const;
  /// The options of a bridge that had this disk alone.
  ///
  /// Errors: a sentence about the file.
  tl::expected<BridgeOptions, std::string> read(const std::string& name) const;
  /// The options that all of them have. Other files with another session are errors from now on.
  ///
  /// Errors: a sentence when there is no file that can be used.
  tl::expected<BridgeOptions, std::string> session();

 private:
  std::string path_of(const std::string& name) const;

  const std::string key_;
  const std::vector<std::string> folders_;
  std::string session_text_;  ///< "": not yet known
};

}  // namespace rnbd
