// SPDX-License-Identifier: BSD-3-Clause
// Advice about storage that is not there.
#pragma once

#include <string>

namespace rnbd {

/// The end of a sentence about a path that leads to nothing. A command is named only where it makes
/// what is missing: a regular file in the place of a device would be in that one's way.
///
/// Threads: any; may block.
std::string advice_for_missing(const std::string& path);

}  // namespace rnbd
