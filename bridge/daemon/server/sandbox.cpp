// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/sandbox.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <string_view>

#include "bridge/backend/backend.hpp"

namespace rnbd {
namespace {

struct Rule {
  std::initializer_list<int> errors;
  std::initializer_list<std::string_view> below;  ///< none: anywhere
  const char* hint;
};

constexpr std::string_view kEdit = " (with 'systemctl edit' of the unit)";

}  // namespace

std::string sandbox_hint(int error, const std::string& storage) {
  if (std::getenv("INVOCATION_ID") == nullptr) return "";
  const auto path = path_of(storage);
  if (!path) return "";
  static const Rule kRules[] = {
      {{EACCES, ENOENT},
       {"/home/", "/root/", "/run/user/"},
       "; the unit may hide this directory from its program: ProtectHome="},
      {{ENOENT},
       {"/tmp/", "/var/tmp/"},
       "; the unit may have a directory of its own there: PrivateTmp="},
      {{EACCES, EPERM, ENOENT},
       {"/dev/"},
       "; the unit may keep devices from its program: DeviceAllow=, SupplementaryGroups="},
      {{EROFS}, {}, "; if it is so for the unit only, name its directory in ReadWritePaths="}};
  for (const Rule& rule : kRules) {
    const bool there =
        rule.below.size() == 0 || std::ranges::any_of(rule.below, [&](std::string_view directory) {
          return path->starts_with(directory);
        });
    if (there && std::ranges::find(rule.errors, error) != rule.errors.end()) {
      return rule.hint + std::string{kEdit};
    }
  }
  return "";
}

}  // namespace rnbd
