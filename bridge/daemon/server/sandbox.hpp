// SPDX-License-Identifier: BSD-3-Clause
// Hints about restrictions of a systemd unit.
#pragma once

#include <string>

namespace rnbd {

/// The end of a message about a file that cannot be opened, if a restriction of the unit is a
/// likely reason. "" otherwise, and outside of units.
///
/// Source: systemd.exec(5).
std::string sandbox_hint(int error, const std::string& storage);

}  // namespace rnbd
