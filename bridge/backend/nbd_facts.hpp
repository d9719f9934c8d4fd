// What an NBD server says of its export.
#pragma once

#include <cstdint>
#include <string>

#include "bridge/backend/backend.hpp"
#include "bridge/backend/nbd_connect.hpp"

namespace rnbd {

struct NbdFacts {
  BackendInfo info;
  bool native_fua = false;
  bool can_flush = false;
  bool multi_conn = false;        ///< its connections see each other's writes
  std::uint64_t max_payload = 0;  ///< bytes per read and write command
};

/// The largest block size of RNBD's messages, in bytes.
inline constexpr std::int64_t kMaxNbdBlock = 32768;

/// `h` is connected.
NbdFacts ask_facts(nbd_handle* h, const std::string& uri, bool read_only);

/// Why an export that was like `before` and is like `now` cannot go on being used as it was: "its
/// size was 1048576 and is 2097152". "" if it can; more than before is no hindrance.
std::string hindrance(const NbdFacts& before, const NbdFacts& now);

}  // namespace rnbd
