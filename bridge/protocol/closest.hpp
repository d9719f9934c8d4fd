// SPDX-License-Identifier: BSD-3-Clause
// The known word closest to an unknown one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rnbd {

/// The candidate that was probably meant; "" when none is close. Of those that are as close it is
/// the one that begins most alike.
std::string closest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace rnbd
