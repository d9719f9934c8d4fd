// SPDX-License-Identifier: BSD-3-Clause
// --check-config with the rights of the service, which are less than root's.
#pragma once

#include <string>

namespace rnbd {

/// Tells how far a check can be trusted.
struct Judge {
  std::string note;     ///< the part that was not judged, for a warning; "" = none
  std::string mistake;  ///< the service's trouble with the file itself; "" = none
};

/// Drops to the rights of the service, if root checks the configuration file of
/// rnbd-server.service: the rest of the check runs as the unit's user. If systemd runs, the check
/// is started again in the unit's sandbox, and this does not return.
///
/// Threads: call it before any file is open that the service might not be able to open.
Judge judge_as_service(const std::string& config);

}  // namespace rnbd
