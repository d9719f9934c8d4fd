// SPDX-License-Identifier: BSD-3-Clause
// Which disk a device of the kernel is: the guard against the wrong one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rnbd::kernel {

/// `disk` is the export's UUID, or where it is when its server tells none.
struct Identity {
  std::string disk;
  std::uint64_t size = 0;  ///< bytes, when there is no UUID; 0 = not part of it
  std::string name;        ///< of the mapping
};

/// `rnbd:DISK:NAME` or `rnbd:DISK/SIZE:NAME`
std::string text_of(const Identity& identity);

/// "" or why a mapping cannot be called so.
std::string complaint_about_map_name(std::string_view name);

enum class Kinship : std::uint8_t {
  stranger,  ///< another mapping, or not ours at all
  same,      ///< the same disk under the same name; it may have grown
  other,     ///< another disk under the same name
};
/// `text`: what the kernel keeps of some device.
Kinship kinship(const Identity& identity, std::string_view text);

}  // namespace rnbd::kernel
