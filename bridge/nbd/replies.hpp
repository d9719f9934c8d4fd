// SPDX-License-Identifier: BSD-3-Clause
// Replies on their way to an NBD client: as many as there are in one system call.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

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
  /// True: there is one reply, of which nothing is sent yet, of so many bytes at most.
  bool is_one_of(std::size_t bytes) const {
    return head_ != nullptr && head_ == tail_ && sent_ == 0 &&
           head_->header_size + head_->payload_size <= bytes;
  }
  void push(Request& request) {
    request.next = nullptr;
    (tail_ != nullptr ? tail_->next : head_) = &request;
    tail_ = &request;
  }
  using Done = void (Connection::*)(Request&);
  /// Sends as much as the socket takes; `done` gets each request with a reply on its way.
  Status send(rtrs::tcp::Stream& stream, Connection& connection, Done done);

  /// Replies that leave together, or their begin.
  class Batch {
   public:
    std::span<const iovec> pieces() const { return std::span{pieces_}.first(count_); }
    std::size_t bytes() const { return bytes_; }

   private:
    friend class Replies;
    void add(std::byte* data, std::size_t size);

    static constexpr std::size_t kPieces = 512;  ///< per system call; IOV_MAX is 1024
    std::array<iovec, kPieces> pieces_;
    std::size_t count_ = 0;
    std::size_t bytes_ = 0;
    std::size_t skip_ = 0;  ///< bytes that are sent already
  };
  void gather(Batch& batch) const;
  /// So many bytes of a batch are sent.
  void advance(std::size_t bytes, Connection& connection, Done done);

 private:
  Request* head_ = nullptr;
  Request* tail_ = nullptr;
  std::size_t sent_ = 0;  ///< bytes of the first one
};

}  // namespace rnbd::nbd
