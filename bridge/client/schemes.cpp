// SPDX-License-Identifier: BSD-3-Clause
// The kinds of disks whose URIs name several servers.
#include <built_annexes.hpp>

#include "bridge/client/uri.hpp"
#if RNBDKIT_WITH_MIRROR
#include "bridge/protocol/mirror.hpp"
#endif

namespace rnbd {

std::span<const SchemeOfSeveral> schemes_of_several() {
#if RNBDKIT_WITH_MIRROR
  static constexpr SchemeOfSeveral kSchemes[] = {
      {"mirror", mirror::kMaxMembers, "a mirror",
       "write rnbd-mirror+tcp://HOST[:PORT],HOST[:PORT]/DEVICE, and HOST+HOST for two paths to one "
       "server"},
  };
  return kSchemes;
#else
  return {};
#endif
}

}  // namespace rnbd
