// SPDX-License-Identifier: BSD-3-Clause
// Which calls of a client are under way, in numbers that its server knows.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace rtrs::library {

/// A server remembers one answer per slot. So a slot belongs to one call at a time, and its next
/// call, with a newer generation, tells the server that nobody asks for the last answer any more.
///
/// Threads: any.
class CallSlots {
 public:
  struct Taken {
    std::uint16_t slot = 0;
    std::uint32_t generation = 0;
    std::uint64_t number = 0;
  };

  explicit CallSlots(unsigned count);

  /// None: all are taken.
  std::optional<Taken> try_take();
  /// Waits for one; asks `give_up` every quarter of a second. None: that said so.
  std::optional<Taken> take(const std::function<bool()>& give_up);
  void give_back(std::uint16_t slot);

 private:
  Taken take_top();

  std::mutex mutex_;
  std::condition_variable freed_;
  unsigned waiting_ = 0;
  std::uint64_t number_ = 0;
  std::vector<std::uint32_t> generations_;
  std::vector<std::uint16_t> free_;  ///< used as a stack: the server's memory for it is warm
};

}  // namespace rtrs::library
