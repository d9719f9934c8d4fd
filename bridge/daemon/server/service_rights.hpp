// SPDX-License-Identifier: BSD-3-Clause
// --check-config for the service: it may not open all that root may.
#pragma once

#include <string>

namespace rnbd {

/// How far a check can be trusted.
struct Judge {
  std::string note;     ///< the part that was not judged, for a warning; "" = none
  std::string mistake;  ///< the service's trouble with the file itself; "" = none
};

/// Makes this process the service's: for the configuration file of rnbd-server.service, and run by
/// root, the rest of the check has the rights of the unit's user. Where systemd runs, the check is
/// begun anew in the unit's sandbox, and this does not return.
///
/// Threads: before there is anything open that the service might not open.
Judge judge_as_service(const std::string& config);

}  // namespace rnbd
