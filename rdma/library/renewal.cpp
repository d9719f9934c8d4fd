// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/renewal.hpp"

#include <cerrno>

#include "rdma/library/call_message.hpp"

namespace rtrs::library {
namespace {

/// Asks the server nothing.
class Nothing final : public Operation {
 public:
  explicit Nothing(int error) : error_{error} {}
  void start(ClientLane& /*lane*/) override { finish(error_); }
  void cancel(ClientLane& /*lane*/) override {}

 private:
  int error_;
};

}  // namespace

/// Calls that are under way were cut for the first server.
std::unique_ptr<Operation> Renewal::reopen(const SessionLimits& limits) {
  const bool fits =
      (limits.features & kFeatureCalls) != 0 && limits.max_io_size >= max_io_size_.load();
  return std::make_unique<Nothing>(fits ? 0 : ESTALE);
}

int Renewal::reopened(Operation& operation) { return operation.error(); }

}  // namespace rtrs::library
