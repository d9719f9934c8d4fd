// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/server/sandbox.hpp"

#include <doctest/doctest.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace sandbox_test {

using namespace rnbd;

namespace {

/// The variable that systemd sets for its units.
struct InUnit {
  InUnit() { ::setenv("INVOCATION_ID", "1", 1); }
  ~InUnit() { ::unsetenv("INVOCATION_ID"); }
};

bool hints(int error, const char* storage, const char* at) {
  return sandbox_hint(error, storage).find(at) != std::string::npos;
}

}  // namespace

TEST_CASE("sandbox: a message names the option of the unit that may be the reason") {
  const InUnit unit;
  CHECK(hints(EROFS, "/data/image", "ReadWritePaths="));
  CHECK(hints(EROFS, "file:/data/image", "ReadWritePaths="));
  CHECK(hints(EACCES, "/home/me/image", "ProtectHome="));
  CHECK(hints(ENOENT, "/root/image", "ProtectHome="));
  CHECK(hints(ENOENT, "/tmp/image", "PrivateTmp="));
  CHECK(hints(EPERM, "/dev/sdb", "DeviceAllow="));
  CHECK(hints(EACCES, "/dev/vg/lv", "SupplementaryGroups="));
}

TEST_CASE("sandbox: it is not blamed for what it has nothing to do with") {
  CHECK(sandbox_hint(EROFS, "/data/image") == "");
  const InUnit unit;
  CHECK(sandbox_hint(ENOENT, "/data/image") == "");
  CHECK(sandbox_hint(EACCES, "/data/image") == "");
  CHECK(sandbox_hint(EBUSY, "/dev/sdb") == "");
  CHECK(sandbox_hint(EACCES, "/homely/image") == "");
  CHECK(sandbox_hint(EROFS, "nbd://storage/image") == "");
}

}  // namespace sandbox_test
