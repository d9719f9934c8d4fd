// SPDX-License-Identifier: BSD-3-Clause
// Messages about blocks that a client maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "bridge/protocol/messages.hpp"
#include "bridge/server/annex.hpp"
#include "bridge/server/brick/brick_client.hpp"
#include "bridge/server/brick/memory_paths.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/services.hpp"
#include "bridge/server/session_parts.hpp"
#include "rdma/core/server/request.hpp"

namespace rnbd {

/// One session's part in the brick of a device.
class BrickDevice final : public DeviceAnnex {
 public:
  BrickDevice(std::shared_ptr<BrickClient> client, const Services& services, rtrs::Reactor* reactor)
      : client_{std::move(client)}, services_{services}, reactor_{reactor} {}
  ~BrickDevice() override;

  /// Null: it has left.
  const std::shared_ptr<BrickClient>& client() const { return client_; }
  /// Ends its maps, so that no key is left.
  bool leave(const std::function<void()>& then) override;

 private:
  std::shared_ptr<BrickClient> client_;
  const Services& services_;
  rtrs::Reactor* const reactor_;
};

/// The brick's thread carries the messages out, and the reactor answers them. A message under way
/// keeps its device and the session.
///
/// Threads: the reactor of the session.
/// Source:  docs/protocol.md, RNBD messages.
class BrickMessages final : public SessionAnnex {
 public:
  BrickMessages(const SessionParts& session, const MemoryPaths& paths)
      : session_{session}, paths_{paths} {}

  bool on_request(rtrs::ServerRequest& request, wire::MessageType type) override;
  void on_memory_path_down(const wire::Uuid& path) override;

 private:
  using Order = std::function<void(brick::Brick& brick, std::uint64_t ticket, BrickClient&)>;
  using Question = std::function<std::vector<std::byte>(brick::Brick& brick, BrickClient&)>;

  void handle(rtrs::ServerRequest& request, wire::MessageType type);
  std::shared_ptr<BrickClient> client_of(Device& device, rtrs::ServerSession* session);
  rtrs::Reactor* reactor() const;
  void order(rtrs::ServerRequest& request, Device& device, Order order);
  void ask(rtrs::ServerRequest& request, Device& device, Question question);
  void ordered(rtrs::ServerRequest& request, Device& device, int error,
               const std::vector<std::byte>& answer);
  void info(rtrs::ServerRequest& request, Device& device);
  void alloc(rtrs::ServerRequest& request, Device& device);
  void free(rtrs::ServerRequest& request, Device& device);
  void range(rtrs::ServerRequest& request, Device& device, wire::MessageType type);
  void list(rtrs::ServerRequest& request, Device& device);
  void map(rtrs::ServerRequest& request, Device& device);
  void unmap(rtrs::ServerRequest& request, Device& device);
  void sync(rtrs::ServerRequest& request, Device& device);
  void revoke(rtrs::ServerRequest& request, Device& device);

  const SessionParts& session_;
  const MemoryPaths& paths_;
};

}  // namespace rnbd
