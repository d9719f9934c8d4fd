// SPDX-License-Identifier: BSD-3-Clause
// The memory of a client's callers, which nobody may touch once a request has ended.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "rdma/wire/endian.hpp"
#include "tests/sim/pattern.hpp"
#include "tests/sim/world.hpp"

namespace sim {

using Buffer = std::unique_ptr<std::vector<std::byte>>;

/// Gives memory out full of poison. Returned memory is poisoned again, kept for a while, and then
/// must still be poison.
class Buffers {
 public:
  explicit Buffers(World& world) : world_{world} {}

  Buffer take(std::size_t size) { return std::make_unique<std::vector<std::byte>>(size, kPoison); }
  void give_back(Buffer buffer) {
    if (!buffer || buffer->empty()) return;
    poison(*buffer);
    returned_.push_back(std::move(buffer));
    if (returned_.size() > kKept) check_oldest();
  }
  void check_all() {
    while (!returned_.empty()) check_oldest();
  }

 private:
  static constexpr std::size_t kKept = 64;

  void check_oldest() {
    if (!is_poisoned(*returned_.front())) {
      world_.violate("memory of a client was written to after its request had ended");
    }
    returned_.pop_front();
  }

  World& world_;
  std::deque<Buffer> returned_;
};

}  // namespace sim
