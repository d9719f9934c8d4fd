// SPDX-License-Identifier: BSD-3-Clause
// A server of RTRS over RDMA that answers as a test tells it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/immediate.hpp"
#include "rdma/wire/messages.hpp"
#include "tests/hostile/raw_connection.hpp"

namespace rtrs::hostile {

/// Listens at the address of RNBD_TARGET, on a port of its own; runs one script in its own thread.
/// All that the script holds is closed when it returns.
class ScriptedServer {
 public:
  using Connections = std::vector<std::unique_ptr<RawConnection>>;

  explicit ScriptedServer(std::function<void(ScriptedServer&)> script);
  ~ScriptedServer();
  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  /// For one lane, and impatient.
  ClientOptions options() const;

  // For scripts:

  /// The next connect request, with a queue pair and receives; null when the server ends.
  std::unique_ptr<RawConnection> next();
  /// Accepts connection 0 and one lane; empty when the client did not come so far.
  Connections accept_all(const wire::ConnectResponse& record);
  /// The same up to the info response, which it sends.
  Connections up(const wire::AcceptParameters& accept);
  /// Until the client has closed.
  static void until_closed(Connections& connections);

  std::uint16_t port = 0;

 private:
  verbs::CmId listener_;
  std::shared_ptr<ibv_pd> domain_;  ///< of all connections
  int stop_ = -1;
  std::thread thread_;
};

/// Sixteen chunks of 8 KiB.
wire::AcceptParameters usual_accept();
/// One descriptor for all chunks.
std::vector<std::byte> usual_info(const RawConnection& connection,
                                  const wire::AcceptParameters& accept = usual_accept());

}  // namespace rtrs::hostile
