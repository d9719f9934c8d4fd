// SPDX-License-Identifier: BSD-3-Clause
// A server's device as a disk of this machine: what is asked for, and the file that says so.
#pragma once

#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/ctl/words.hpp"

namespace rnbd {

struct Mapping {
  std::string name;
  std::string uri;
  std::string kernel = "nbd";             ///< or "nbd:3"
  std::vector<std::string> options = {};  ///< of rnbd-bridge, none of which has a blank
  friend bool operator==(const Mapping&, const Mapping&) = default;
};

/// The wish of a `map`.
///
/// Errors: a sentence that says what to write instead.
tl::expected<Mapping, std::string> mapping_of(const CtlAction& action);

/// The file of rnbd-map@NAME.service. Source: systemd.exec(5), EnvironmentFile=.
std::string file_of(const Mapping& mapping);

/// The mapping that file_of() wrote, for whoever has no systemd.
///
/// Errors: a sentence about a line of it.
tl::expected<Mapping, std::string> read_mapping(const std::string& name, const std::string& text);

/// "" or why a mapping cannot have the name.
std::string complaint_about_mapping_name(const std::string& name);

/// Where the file is: after the next boot, too, or not.
std::string path_of_mapping(const std::string& root, const std::string& name, bool persist);

}  // namespace rnbd
