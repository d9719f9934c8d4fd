// SPDX-License-Identifier: BSD-3-Clause
// A client that came over TCP and waits for an answer.
#pragma once

#include <memory>

#include "rdma/transport/acceptor.hpp"
#include "rdma/transport/tcp/stream.hpp"

namespace rtrs::tcp {

class TcpIncoming final : public Incoming {
 public:
  TcpIncoming(Stream stream, std::uint16_t digests);

  void reject(const wire::ConnectResponse& answer) override;
  tl::expected<std::unique_ptr<Connection>, Failure> open(const QueueSizes&,
                                                          std::shared_ptr<PathContext>&) override;
  tl::expected<void, Failure> accept(const wire::ConnectResponse& answer) override;

 private:
  bool send_record(const wire::ConnectResponse& answer, std::uint16_t digests);

  Stream own_;                ///< until open()
  Stream* stream_ = nullptr;  ///< where the answer goes
  std::uint16_t digests_;
};

}  // namespace rtrs::tcp
