// SPDX-License-Identifier: BSD-3-Clause
// Whether writes that were answered but not flushed may be gone.
#pragma once

#include <cstdint>
#include <string_view>

namespace rtrs {

/// Names a life of the machine: when it changes, the contents of the page cache are lost.
///
/// Source: random(4), /proc/sys/kernel/random/boot_id; docs/protocol.md, RTRS extension.
std::uint64_t volatile_epoch_of(std::string_view boot_id);

/// Of this machine, of which its user knows of so many losses by other causes. A machine that does
/// not tell its lives gets another one each time, which is safe.
std::uint64_t volatile_epoch_of_this_machine(std::uint64_t losses = 0);

}  // namespace rtrs
