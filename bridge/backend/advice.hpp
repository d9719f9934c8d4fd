// SPDX-License-Identifier: BSD-3-Clause
// Advice about storage that is not there.
#pragma once

#include <string>

namespace rnbd {

/// Advice for the end of a sentence about a path that does not exist. It names a command only if
/// the command would create the right thing: a regular file must not take the place of a device.
///
/// Threads: any; may block.
std::string advice_for_missing(const std::string& path);

}  // namespace rnbd
