// SPDX-License-Identifier: BSD-3-Clause
// A directory with one empty file per disk, for servers that let clients open files by name.
#pragma once

#include <string>

namespace sim {

/// Made when first asked for, removed when the program ends.
const std::string& search_directory();

/// Which disk an open file of the directory stands for.
unsigned disk_of_file(const std::string& path);

}  // namespace sim
