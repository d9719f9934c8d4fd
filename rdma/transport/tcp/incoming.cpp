// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/tcp/incoming.hpp"

#include <array>
#include <cerrno>
#include <utility>

#include "rdma/transport/tcp/frame.hpp"
#include "rdma/transport/tcp/queue_pair.hpp"

namespace rtrs::tcp {

TcpIncoming::TcpIncoming(Stream stream, std::uint16_t digests)
    : own_{std::move(stream)}, stream_{&own_}, digests_{digests} {
  if (const Identity* const proven = own_.peer()) identity = *proven;
}

/// A hello fits into the empty buffer of a new socket, so this never blocks.
bool TcpIncoming::send_record(const wire::ConnectResponse& answer, std::uint16_t digests) {
  Hello hello = make_hello(wire::bytes_of(answer), digests);
  const std::array<iovec, 1> piece{{{&hello, sizeof(hello)}}};
  const ssize_t n = stream_->send(piece);
  errno = n < 0 ? static_cast<int>(-n) : EIO;  // of a socket that took a part only
  return n == static_cast<ssize_t>(sizeof(hello)) && !stream_->has_unsent();
}

void TcpIncoming::reject(const wire::ConnectResponse& answer) { send_record(answer, 0); }

tl::expected<std::unique_ptr<Connection>, Failure> TcpIncoming::open(
    const QueueSizes& sizes, std::shared_ptr<PathContext>& context) {
  if (sizes.regions && context == nullptr) context = std::make_shared<RegionTable>();
  auto queue_pair = std::make_unique<TcpQueuePair>(
      std::move(own_),
      Digests{.header = (digests_ & kDigestHeader) != 0, .data = (digests_ & kDigestData) != 0},
      std::dynamic_pointer_cast<RegionTable>(context));
  stream_ = &queue_pair->stream();
  return queue_pair;
}

tl::expected<void, Failure> TcpIncoming::accept(const wire::ConnectResponse& answer) {
  if (!send_record(answer, digests_)) return tl::unexpected(broke_while_accepted(errno));
  return {};
}

}  // namespace rtrs::tcp
