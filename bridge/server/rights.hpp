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

/// Patterns of users: a name; the beginning of one with `*` behind it; `*` for every user that has
/// proven a name; `@ADDRESS` or `@NETWORK/BITS` for one that has proven none and comes from there.
struct Rights {
  std::vector<std::string> rw;  ///< these may write and read
  std::vector<std::string> ro;  ///< these may read

  /// None: everybody may do everything.
  bool given() const { return !rw.empty() || !ro.empty(); }
  friend bool operator==(const Rights&, const Rights&) = default;
};

/// At the other end of a session.
struct User {
  std::string name = {};  ///< "": nobody has proven anything
  std::string peer = {};  ///< address and port, as "127.0.0.1:40000" or "[::1]:40000"
};

enum class Permission : std::uint8_t { none, read, write };

/// Threads: any; pure.
Permission permission_of(const Rights& rights, const User& user);

/// The fault of a pattern, as the end of a sentence; "" = none.
std::string fault_of_pattern(std::string_view pattern);

/// See rtrs::audit_line(); fit for one line with any bytes in the values.
std::string audit_line(std::string_view event, rtrs::AuditFields fields);

/// The number of a session among those of all users: another user cannot make the same one by
/// choosing the number of his session. A user without a proven name keeps his own.
rtrs::wire::Uuid number_of_user(const rtrs::wire::Uuid& session, std::string_view user);

}  // namespace rnbd
