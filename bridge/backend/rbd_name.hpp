// SPDX-License-Identifier: BSD-3-Clause
// The name of an image: POOL[/NAMESPACE]/IMAGE[@SNAPSHOT][,conf=FILE][,id=USER].
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rnbd {

/// Empty strings: not given.
struct RbdName {
  std::string pool, space, image, snapshot, conf, id;
};

/// None: the text has a different form. Pure.
std::optional<RbdName> parse_rbd_name(std::string_view text);

}  // namespace rnbd
