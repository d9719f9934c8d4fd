// SPDX-License-Identifier: BSD-3-Clause
// Storage around other storage.
#pragma once

#include <memory>
#include <utility>

#include "bridge/backend/backend.hpp"

namespace rnbd {

/// Storage around other storage. It has the properties and abilities of the one inside; only its
/// queues differ.
///
/// Threads: as Backend.
class WrapperBackend : public Backend {
 public:
  explicit WrapperBackend(std::unique_ptr<Backend> inner) : inner_{std::move(inner)} {}

  const BackendInfo& info() const final { return inner_->info(); }
  std::uint64_t present_size() final { return inner_->present_size(); }
  DistantSize* distant_size() final { return inner_->distant_size(); }
  std::optional<std::uint64_t> shrunk_to() const final { return inner_->shrunk_to(); }
  Whereabouts whereabouts() const final { return inner_->whereabouts(); }
  std::uint32_t life() const final { return inner_->life(); }
  BackendExtension* extension() final { return inner_->extension(); }
  std::unique_ptr<BackendQueue> open_queue(rtrs::Reactor* reactor) final {
    auto queue = inner_->open_queue(reactor);
    return queue == nullptr ? nullptr : wrap(std::move(queue), reactor);
  }

 private:
  virtual std::unique_ptr<BackendQueue> wrap(std::unique_ptr<BackendQueue> queue,
                                             rtrs::Reactor* reactor) = 0;

  std::unique_ptr<Backend> inner_;
};

}  // namespace rnbd
