// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/brick/brick_client.hpp"

namespace rnbd {
namespace {

/// A number that no path of a brick has.
constexpr brick::Path kDeadPath = ~brick::Path{0};
/// Remembered of one session: a client that names more has lost its way.
constexpr std::size_t kMostPaths = 65536;

}  // namespace

void BrickClient::join(std::function<void()> on_recall) {
  service_.add_session(session_, name_, std::move(on_recall));
}

void BrickClient::leave(std::function<void()> then) {
  service_.run([self = shared_from_this(), then = std::move(then)](brick::Brick& brick) {
    brick.leave(self->service_.ask([then](const brick::Reply&) { then(); }), self->session_);
    for (const auto& [uuid, path] : self->paths_) self->service_.remove_path(path);
    self->service_.remove_session(self->session_);
  });
}

brick::Path BrickClient::path(const wire::Uuid& uuid,
                              const std::shared_ptr<brick::BrickExposure>& exposure) {
  const auto found = paths_.find(uuid);
  if (found != paths_.end()) return found->second;
  if (exposure == nullptr) return 0;
  return paths_[uuid] = service_.add_path(session_, exposure);
}

void BrickClient::path_gone(const wire::Uuid& uuid) {
  if (const auto found = paths_.find(uuid); found != paths_.end())
    service_.remove_path(found->second);
}

brick::Path BrickClient::known_path(const wire::Uuid& uuid) {
  const auto found = paths_.find(uuid);
  if (found != paths_.end()) return found->second;
  if (paths_.size() < kMostPaths) paths_.emplace(uuid, kDeadPath);
  return kDeadPath;
}

}  // namespace rnbd
