// SPDX-License-Identifier: BSD-3-Clause
// One session's part in a brick: its number there, and its memory paths.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "bridge/backend/brick/service.hpp"
#include "bridge/protocol/messages.hpp"

namespace rnbd {

/// The state that a session with an open brick keeps for it.
///
/// Threads: the brick's, but for the constructor and leave().
class BrickClient : public std::enable_shared_from_this<BrickClient> {
 public:
  BrickClient(brick::BrickService& service, std::string name)
      : service_{service}, name_{std::move(name)}, session_{service.new_session()} {}

  brick::BrickService& service() const { return service_; }
  brick::Session session() const { return session_; }

  /// Calls `on_recall` on the brick's thread when the brick wants blocks back.
  void join(std::function<void()> on_recall);
  /// Ends all maps of the session. `then` is called on the brick's thread when their keys are dead.
  ///
  /// Threads: any.
  void leave(std::function<void()> then);
  /// The number of a path in the brick; 0: unknown, and `exposure` is null.
  brick::Path path(const wire::Uuid& uuid, const std::shared_ptr<brick::BrickExposure>& exposure);
  void path_gone(const wire::Uuid& uuid);
  /// The number of a path to revoke, which may be gone already. A path without maps will never have
  /// any after this.
  brick::Path known_path(const wire::Uuid& uuid);

 private:
  brick::BrickService& service_;
  std::string name_;
  brick::Session session_;
  std::map<wire::Uuid, brick::Path> paths_;
};

}  // namespace rnbd
