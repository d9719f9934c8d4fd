// SPDX-License-Identifier: BSD-3-Clause
// The numbers of a client's OPENs, by which copies of them are recognized that come late.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace rnbd {

/// Remembers the end of each OPEN until the client has said that it knows it. The number 0 is that
/// of clients which do not number their OPENs; nothing is remembered of it.
///
/// Threads: the reactor of the session.
/// Source:  docs/protocol.md, RNBD messages.
class OpenNumbers {
 public:
  /// The most refused OPENs that may still have copies under way. Honest clients have a handful.
  static constexpr std::size_t kMaxRefused = 1024;

  /// OPENs below the number have ended for the client.
  void settle(std::uint32_t number);
  /// The errno with which an OPEN must end, because its sender has left or has been answered
  /// elsewhere: it is a copy that was late, or that took long. Its device would never be closed. 0:
  /// it may go on.
  int verdict(std::uint32_t number, std::string_view name) const;
  /// Copies of this OPEN end with the same errno until it is settled. For that the client may have
  /// to wait for the answers to others.
  void refuse(std::uint32_t number, int error);
  /// The device is closed. `newest` is the number of its newest OPEN; older ones may come late.
  void close(const std::string& name, std::uint32_t newest);

 private:
  std::uint32_t settled_ = 0;
  std::map<std::uint32_t, int> refused_;  ///< by number, from settled_ on: the errno
  /// By name, from settled_ on: the newest OPEN of a closed device.
  std::map<std::string, std::uint32_t, std::less<>> closed_;
};

}  // namespace rnbd
