// SPDX-License-Identifier: BSD-3-Clause
// The client behind the handle of the C interface.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "rdma/client.hpp"
#include "rdma/library/call_operation.hpp"
#include "rdma/library/call_slots.hpp"
#include "rdma/library/gate.hpp"
#include "rdma/library/include/rtrs.h"
#include "rdma/library/submissions.hpp"

namespace rtrs::library {

/// Nothing is open that would have to be opened again: the new session begins at once, and each
/// call decides for itself how to go on (CallOperation).
///
/// Threads: as RecoveryHandler.
class Renewal final : public RecoveryHandler {
 public:
  /// Of the first session; to be called before any other can begin.
  void expect(const SessionLimits& limits) { max_io_size_ = limits.max_io_size; }

  std::unique_ptr<Operation> reopen(const SessionLimits& limits) override;
  int reopened(Operation& operation) override;

 private:
  std::atomic<std::uint32_t> max_io_size_{0};  ///< bytes; 0 = not known yet
};

}  // namespace rtrs::library

/// A client and the additions of the library: the slots of its calls, the end of calls whose server
/// was replaced, and a thread for calls without a waiting caller.
///
/// Threads: any that are inside the gate; the destructor when nobody is.
struct rtrs_client {
 public:
  /// Errors: as rtrs::Client::connect(); EPROTONOSUPPORT: the server is none of this library.
  static tl::expected<std::unique_ptr<rtrs_client>, rtrs::Failure> connect(
      const char* uri, const rtrs_client_options& options);

  /// When it is shut, calls and those that wait for a permit give up.
  rtrs::library::Gate& gate() { return gate_; }
  /// Runs a call and waits for its end. Errors: as rtrs_call().
  int run(rtrs::library::CallPlan plan, unsigned flags, std::size_t* answer_length);
  int submit(rtrs_operation& operation, rtrs::library::CallPlan plan);
  int cancel(rtrs_operation& operation);
  /// -1: the system has no descriptor or thread left, or the gate was closed before it was needed.
  int descriptor();
  /// -1: the client is shut down, and all operations were handed over.
  int next(rtrs_operation** operations, int count);
  /// Ends calls and operations with ECANCELED.
  void shut_down();

  rtrs::Client& client() { return *client_; }

 private:
  rtrs_client() = default;
  rtrs::library::Submissions* submissions();

  rtrs::library::Gate gate_;
  rtrs::library::Renewal renewal_;  // outlives the client
  std::unique_ptr<rtrs::Client> client_;
  std::unique_ptr<rtrs::library::CallSlots> slots_;
  rtrs::Duration call_timeout_{};
  std::mutex mutex_;  ///< guards the creation of submissions_
  std::unique_ptr<rtrs::library::Submissions> submissions_;
  std::atomic<rtrs::library::Submissions*> ready_{nullptr};
};

namespace rtrs::library {

/// Checks a call of the C interface. Errors: EINVAL, EMSGSIZE, EOPNOTSUPP.
tl::expected<CallPlan, int> plan_call(const void* message, std::size_t message_length,
                                      const iovec* out, int out_count, const iovec* in,
                                      int in_count, unsigned flags);

}  // namespace rtrs::library
