// SPDX-License-Identifier: BSD-3-Clause
// On which addresses nbdkit listens, which its interface does not tell.
#pragma once

#include <string>

namespace rnbd::plugin {

/// "0.0.0.0 port 10809, :: port 10809": where others than this machine can connect; "" = nowhere.
///
/// Threads: once nbdkit has bound its sockets, that is from after_fork() on.
std::string open_to_strangers();

}  // namespace rnbd::plugin
