// SPDX-License-Identifier: BSD-3-Clause
// Users' rights on an export, and their lines in the log.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/audit_line.hpp"
#include "rdma/wire/handshake.hpp"

namespace rnbd {

/// Patterns of users. NAME is one user, and NAM* all with this beginning. `*` is every user with a
/// proven name. `@ADDRESS` or `@NETWORK/BITS` is a user without a proven name from there.
struct Rights {
  std::vector<std::string> rw;  ///< these may write and read
  std::vector<std::string> ro;  ///< these may read

  /// No lists: every user may read and write.
  bool given() const { return !rw.empty() || !ro.empty(); }
  friend bool operator==(const Rights&, const Rights&) = default;
};

/// The user at the other end of a session.
struct User {
  std::string name = {};  ///< "": nobody has proven anything
  std::string peer = {};  ///< address and port, as "127.0.0.1:40000" or "[::1]:40000"
};

enum class Permission : std::uint8_t { none, read, write };

/// Threads: any; pure.
Permission permission_of(const Rights& rights, const User& user);

/// The mistake in a pattern, as the end of a sentence; "" = none.
std::string fault_of_pattern(std::string_view pattern);

/// See rtrs::audit_line(); fit for one line with any bytes in the values.
std::string audit_line(std::string_view event, rtrs::AuditFields fields);

/// Makes the UUID of a session unique among all users, so that one user cannot copy the session of
/// another. The UUID of a user without a proven name stays.
rtrs::wire::Uuid number_of_user(const rtrs::wire::Uuid& session, std::string_view user);

}  // namespace rnbd
