// One message and its answer: all that is not block I/O.
#pragma once

#include <array>
#include <cstdint>

#include "bridge/protocol/messages.hpp"
#include "rdma/core/client_lane.hpp"

namespace rnbd {

/// Sends a message of the RNBD protocol and waits for its answer, or for its errno when it has
/// none.
///
/// Errors:  what the server answered; the bytes of an answer are not judged here.
/// Threads: as rtrs::Operation.
class ControlOperation final : public rtrs::Operation {
 public:
  /// A question: `answer` is filled on success and must outlive the operation.
  template <class T>
  ControlOperation(const T& message, rtrs::MutableBytes answer)
      : ControlOperation(rtrs::wire::bytes_of(message), answer, /*is_read=*/true) {}
  /// A command, which is answered by an errno only.
  template <class T>
  explicit ControlOperation(const T& message)
      : ControlOperation(rtrs::wire::bytes_of(message), {}, /*is_read=*/false) {}

  void start(rtrs::ClientLane& lane) override;
  void cancel(rtrs::ClientLane& lane) override;

 private:
  ControlOperation(rtrs::ConstBytes message, rtrs::MutableBytes answer, bool is_read);
  static void on_done(rtrs::ClientLane& lane, rtrs::Request& request);

  std::array<std::byte, rtrs::kMaxUserMessage> message_;
  rtrs::Request request_;
};

}  // namespace rnbd
