// SPDX-License-Identifier: BSD-3-Clause
// What a unit of systemd lets its program do.
#pragma once

#include <string>

namespace rnbd {

/// What else may be the reason why a unit's program cannot open a file, as the end of a message; ""
/// for what runs in no unit, and where the unit is hardly to blame.
///
/// Source: systemd.exec(5).
std::string sandbox_hint(int error, const std::string& storage);

}  // namespace rnbd
