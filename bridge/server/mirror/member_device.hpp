// SPDX-License-Identifier: BSD-3-Clause
// One session's device of a storage that is a member of a mirror group.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>

#include "bridge/backend/backend.hpp"
#include "bridge/server/annex.hpp"
#include "bridge/server/mirror/seat.hpp"

namespace rnbd::mirror {

/// Stands in front of the storage's queue: it serves the session that has claimed the member, and
/// to a guest it lets reads pass. A change of a region that is not in the activity log waits until
/// it is there.
///
/// Threads: the reactor of the session.
class MemberDevice final : public DeviceAnnex, public BackendQueue {
 public:
  /// The part of a device; it is made if there is none yet.
  static MemberDevice& of(Device& device, Seat& seat, const Services& services,
                          rtrs::Reactor* reactor);
  MemberDevice(Device& device, std::shared_ptr<Seat> seat, const Services& services,
               rtrs::Reactor* reactor);
  ~MemberDevice() override { seat_->leave(session_); }

  Seat& seat() const { return *seat_; }
  bool is_served() const { return seat_->serves(session_); }
  bool writes() const override { return is_served(); }
  int refuses() const override {
    return seat_->taken() && !is_served() && !is_guest() ? ESTALE : 0;
  }
  std::uint64_t reach(std::uint64_t size) const override {
    return is_served() || is_guest() ? std::min(size, seat_->size()) : size;
  }
  std::uint64_t session() const { return session_; }
  /// Its session at the seat, which the first claim makes.
  std::uint64_t begin_session() {
    if (session_ == 0) session_ = seat_->next_session();
    return session_;
  }
  /// Reads for a client, as another member's server that pulls data. False: that client is not
  /// served, or means another disk.
  bool be_guest_of(const wire::Uuid& group, const wire::Uuid& claimant, std::uint64_t disk) {
    return (host_ = seat_->host_of(group, claimant, disk)) != 0;
  }

  void submit(BackendRequest& request) override;
  bool broken() const override { return inner_.broken(); }

 private:
  bool is_guest() const { return seat_->serves(host_); }
  int judge(const BackendRequest& request) const;

  const Device& device_;
  const std::shared_ptr<Seat> seat_;
  const Services& services_;
  rtrs::Reactor* const reactor_;
  BackendQueue& inner_;
  std::uint64_t session_ = 0;  ///< at the seat; 0: it has claimed nothing
  std::uint64_t host_ = 0;     ///< the session that it reads for, as a guest; 0: none
};

}  // namespace rnbd::mirror
