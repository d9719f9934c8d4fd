// SPDX-License-Identifier: BSD-3-Clause
// Messages about blocks that a client maps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "bridge/protocol/messages.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/session_facts.hpp"
#include "bridge/server/surroundings.hpp"
#include "rdma/core/server/request.hpp"

namespace rnbd {

namespace brick {
class Brick;
}

/// The brick's thread carries the messages out, and the reactor answers them. A message under way
/// keeps its device and the session.
///
/// Threads: the reactor of the session.
/// Source:  docs/protocol.md, RNBD messages.
class BrickMessages {
 public:
  /// `close` ends a CLOSE of a device when nothing of the device runs and it has no maps.
  BrickMessages(const SessionFacts& facts, const OpenTable& devices,
                const Surroundings& surroundings, rtrs::Reactor* reactor,
                std::function<void(Device& device)> close)
      : facts_{facts},
        devices_{devices},
        surroundings_{surroundings},
        reactor_{reactor},
        close_{std::move(close)} {}

  void on_request(rtrs::ServerRequest& request, wire::MessageType type);
  /// Ends the maps of a device that has some part in its brick, and closes it.
  void end_maps(Device& device);
  /// No access over this path to the memory of bricks is possible any more.
  void on_memory_path_down(const wire::Uuid& path);

 private:
  using Order = std::function<void(brick::Brick& brick, std::uint64_t ticket, BrickClient&)>;
  using Question = std::function<std::vector<std::byte>(brick::Brick& brick, BrickClient&)>;

  BrickClient* client_of(Device& device, rtrs::ServerSession* session);
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

  const SessionFacts& facts_;
  const OpenTable& devices_;
  const Surroundings& surroundings_;
  rtrs::Reactor* const reactor_;
  const std::function<void(Device& device)> close_;
};

}  // namespace rnbd
