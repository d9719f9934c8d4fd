// SPDX-License-Identifier: BSD-3-Clause
// The identity of the disk behind a device of the kernel, against use of the wrong disk.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace rnbd::kernel {

/// `disk` is the export's UUID, or its address if the server reports none.
struct Identity {
  std::string disk;
  std::uint64_t size = 0;  ///< bytes, when there is no UUID; 0 = not part of it
  std::string name;        ///< of the mapping
};

/// `rnbd:DISK:NAME` or `rnbd:DISK/SIZE:NAME`
std::string text_of(const Identity& identity);

/// "" or the reason why a mapping cannot have this name.
std::string complaint_about_map_name(std::string_view name);

enum class Kinship : std::uint8_t {
  stranger,  ///< another mapping, or not ours at all
  same,      ///< the same disk under the same name; it may have grown
  other,     ///< another disk under the same name
};
/// `text` is the identifier that the kernel stores for a device.
Kinship kinship(const Identity& identity, std::string_view text);

}  // namespace rnbd::kernel
