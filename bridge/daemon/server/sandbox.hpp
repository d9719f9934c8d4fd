// SPDX-License-Identifier: BSD-3-Clause
// The rights that a unit of systemd leaves to its program.
#pragma once

#include <string>

namespace rnbd {

/// Another possible reason why a unit's program cannot open a file, as the end of a message; ""
/// for a program in no unit, and where the unit is hardly to blame.
///
/// Source: systemd.exec(5).
std::string sandbox_hint(int error, const std::string& storage);

}  // namespace rnbd
