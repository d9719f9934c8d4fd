// SPDX-License-Identifier: BSD-3-Clause
// Requests for a brick: at once for blocks that are in memory, by its thread for the rest.
#pragma once

#include "bridge/backend/backend.hpp"
#include "bridge/backend/brick/service.hpp"

namespace rnbd {

/// Threads: its reactor's.
class BrickQueue final : public BackendQueue {
 public:
  BrickQueue(brick::BrickService& service, bool read_only, rtrs::Reactor& reactor)
      : service_{service}, reactor_{reactor}, read_only_{read_only} {}

  void submit(BackendRequest& request) override;

 private:
  /// The progress of a request on the brick's thread.
  struct Progress {
    rtrs::Reactor* reactor = nullptr;
    brick::BrickService* service = nullptr;
    std::uint64_t done = 0;  ///< bytes
  };
  struct Part {
    brick::Block block = 0;
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };

  static Progress& progress_of(BackendRequest& request);
  static Part part_of(const BackendRequest& request, std::uint64_t done);
  static void copy(brick::BrickService& service, BackendRequest& request, const Part& part,
                   std::uint64_t done, brick::Slot slot);
  bool move_at_once(BackendRequest& request, std::uint64_t& done);
  void hand_over(BackendRequest& request, std::uint64_t done);

  // On the brick's thread.
  static void finish(BackendRequest& request, int error);
  static void go_on(BackendRequest& request);
  static void advance(BackendRequest& request, std::uint64_t length);
  static void move(brick::Brick& brick, BackendRequest& request, const Part& part);
  static void zero(brick::Brick& brick, BackendRequest& request, const Part& part);
  static void clear(brick::Brick& brick, BackendRequest& request, const Part& part);
  static void flush(brick::Brick& brick, BackendRequest& request);
  static void tell_extents(brick::Brick& brick, BackendRequest& request);

  brick::BrickService& service_;
  rtrs::Reactor& reactor_;
  bool read_only_;
};

}  // namespace rnbd
