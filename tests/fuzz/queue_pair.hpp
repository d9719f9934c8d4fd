// SPDX-License-Identifier: BSD-3-Clause
// A queue pair that sends nothing, for state machines under test to speak to.
#pragma once

#include "rdma/core/queue_pair.hpp"

namespace fuzz {

/// Overridden where a target has to see what would be sent.
class SilentQueuePair : public rtrs::QueuePair {
 public:
  rtrs::Ticket write_with_immediate(rtrs::RemoteMemory, rtrs::ConstBytes, rtrs::ConstBytes,
                                    std::uint32_t) override {
    return 1;
  }
  rtrs::Ticket write(rtrs::RemoteMemory, rtrs::ConstBytes) override { return 1; }
  rtrs::Ticket send(rtrs::ConstBytes) override { return 1; }
  rtrs::Ticket send_with_immediate(rtrs::ConstBytes, std::uint32_t) override { return 1; }
  rtrs::Ticket send_with_invalidate(std::uint32_t) override { return 1; }
  void post_receives(unsigned, std::uint32_t) override {}
  rtrs::RemoteMemory expose(std::uint32_t, rtrs::MutableBytes) override { return {0, 1}; }
  void withdraw(std::uint32_t) override {}
  void flush() override {}
  rtrs::Ticket sent() const override { return 1; }
  void disown_unsent() override {}
};

}  // namespace fuzz
