// SPDX-License-Identifier: BSD-3-Clause
// Requests for an image of a Ceph cluster, from one reactor.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "bridge/backend/backend.hpp"
#include "bridge/backend/rbd_module.hpp"
#include "rdma/transport/reactor.hpp"

namespace rnbd {

/// An open image, shared by the queues of all reactors.
struct RbdShared {
  ~RbdShared() {
    if (image != nullptr) module->close(image);
  }
  void note_size() {
    const std::uint64_t now = module->size(image);
    std::uint64_t known = size;
    while (now > known && !size.compare_exchange_weak(known, now)) {
    }
  }

  /// True when the cluster refuses all requests of this server. The first time it writes to the
  /// log.
  bool is_fenced() {
    if (!module->fenced(image)) return false;
    if (!told.exchange(true) && log) {
      log(rtrs::LogLevel::error,
          name +
              ": the cluster has fenced this server off, because another one has taken the "
              "image's lock, or by an order; every request fails until the export is opened anew");
    }
    return true;
  }

  std::string name;
  const RbdModule* module = nullptr;
  RbdImage* image = nullptr;
  BackendInfo info;
  rtrs::Log log;
  std::atomic<std::uint64_t> size{0};  ///< bytes; grows only
  std::atomic<bool> told{false};       ///< it was reported that it is fenced off
};

/// A queue of its own for each reactor.
std::unique_ptr<BackendQueue> open_rbd_queue(std::shared_ptr<RbdShared> shared,
                                             rtrs::Reactor& reactor);

}  // namespace rnbd
