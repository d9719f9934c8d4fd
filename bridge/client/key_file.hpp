// SPDX-License-Identifier: BSD-3-Clause
// The names of files with keys, as users write them.
#pragma once

#include <string>
#include <string_view>
#include <tl/expected.hpp>

namespace rnbd {

/// Makes the path of a file or directory of keys absolute, for a program that will change its
/// working directory. `credential:NAME`, which systemd hands over, stays as it is: the readers of
/// keys know it.
///
/// Errors: a sentence that says what to write.
tl::expected<std::string, std::string> parse_key_file(std::string_view value);

}  // namespace rnbd
