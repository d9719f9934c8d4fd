// SPDX-License-Identifier: BSD-3-Clause
// The devices, sessions and paths of the programs of this machine, as rows. Names of fields are
// those that IONOS's `rnbd` has, too.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bridge/ctl/dialog.hpp"
#include "bridge/ctl/kernel_devices.hpp"
#include "bridge/ctl/words.hpp"

namespace rnbd {

struct CtlReport;

/// The look of a field, which says whether a sum of it means something, too.
enum class CtlKind : std::uint8_t { text, number, count, bytes, paths };

struct CtlField {
  std::string_view name;
  CtlKind kind;
  bool usual;                     ///< shown when nobody asks for certain ones
  std::string_view meaning = {};  ///< a sentence with its unit
};

/// The fields in the order in which they are shown.
std::span<const CtlField> fields_of(CtlObject object);

/// A row has a value for each field, or null where the program does not know it. A client's path
/// says besides, as `elsewhere`, whether it leads to another server, and a client's session, as
/// `serves`, the disks of the kernel of a bridge that they share.
struct CtlInventory {
  std::vector<CtlJson> devices, sessions, paths;

  const std::vector<CtlJson>& of(CtlObject object) const {
    return object == CtlObject::device ? devices : object == CtlObject::session ? sessions : paths;
  }
};

/// Devices of the kernel behind which no program is get rows of their own, and so do exports that
/// nobody has open. The openers of the kernel's devices are not known here.
CtlInventory take_inventory(const std::vector<CtlReport>& reports,
                            const std::vector<KernelDevice>& kernel_devices, CtlSide side);

/// True if the row of a device belongs to this program.
bool is_of_program(const CtlJson& row, const CtlReport& report);

/// A path may be called as it is shown, or by its address without transport, source or port.
bool is_path_called(const CtlJson& path, const std::string& name);

}  // namespace rnbd
