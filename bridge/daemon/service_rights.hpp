// SPDX-License-Identifier: BSD-3-Clause
// --check-config for the service: what root may open, the service may not.
#pragma once

#include <string>

namespace rnbd {

/// What a check is worth.
struct Judge {
  std::string note;     ///< what was not judged, for a warning; "" = all was
  std::string mistake;  ///< what the service cannot do with the file itself; "" = nothing
};

/// Makes this process the service's: for the configuration file of rnbd-server.service, and run by
/// root, the rest of the check has the rights of the unit's user. Where systemd runs, the check is
/// begun anew in the unit's sandbox, and this does not return.
///
/// Threads: before there is anything open that the service might not open.
Judge judge_as_service(const std::string& config);

}  // namespace rnbd
