// SPDX-License-Identifier: BSD-3-Clause
// Replies on their way to an NBD client: as many as there are in one system call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bridge/nbd/framing.hpp"
#include "bridge/nbd/request.hpp"
#include "rdma/transport/tcp/stream.hpp"

namespace rnbd::nbd {

/// Fills in the header of a request's reply. The payload, if any, is in its buffer.
/// Source: the NBD protocol, simple and structured reply messages, and extended reply chunks.
void make_reply(Request& request, Framing framing);

/// The queue of one connection.
///
/// Threads: that of its connection.
class Replies {
 public:
  enum class Status {
    sent,    ///< everything
    full,    ///< the socket takes no more at the moment
    broken,  ///< the client has gone
  };

  bool empty() const { return head_ == nullptr; }
  void push(Request& request) {
    request.next = nullptr;
    (tail_ != nullptr ? tail_->next : head_) = &request;
    tail_ = &request;
  }
  /// Sends as much as the socket takes; `done` gets each request with a reply on its way.
  Status send(rtrs::tcp::Stream& stream, Connection& connection,
              void (Connection::*done)(Request&));

 private:
  Request* head_ = nullptr;
  Request* tail_ = nullptr;
  std::size_t sent_ = 0;  ///< bytes of the first one
};

}  // namespace rnbd::nbd
