// SPDX-License-Identifier: BSD-3-Clause
// Messages to a member's server for all orders of a group except block I/O.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "bridge/client/device_handle.hpp"
#include "bridge/client/mirror/group.hpp"
#include "bridge/protocol/mirror_messages.hpp"
#include "rdma/core/client/lane.hpp"

namespace rnbd::mirror {

/// The properties on which all members of a group must agree.
struct GroupShape {
  unsigned members = 0;  ///< disks; the vote is behind them
  std::uint32_t regions = 0;
  unsigned region_shift = 0;  ///< a region has 1 << region_shift bytes
  std::uint64_t size = 0;     ///< bytes of the disk
  wire::Uuid group{};
  wire::Uuid claimant{};  ///< this run of the client
};

/// CLAIM, BLOCK STATUS, VIEW, CONFIRM, REGIONS, COOL, PULL, DISSOLVE or ROOM, each in one or more
/// messages. A claim also reads the member's maps, unless it is for growth. An echo is a question
/// about the first region. A member that tells no extents counts as one with data everywhere.
///
/// Errors:  the server's; EPROTO (an invalid answer, or one of another group: complaint());
///          ENOTEMPTY of an inspection, with a complaint.
/// Threads: as rtrs::Operation.
/// Source:  docs/protocol.md, members of mirror groups.
class MemberOrder final : public rtrs::Operation {
 public:
  /// `device` must outlive the operation. `room`: bytes that one message may carry. `source`: the
  /// URI of the member to pull from.
  MemberOrder(const Command& command, const GroupShape& shape, const DeviceHandle& device,
              std::size_t room, std::string source = {});

  void start(rtrs::ClientLane& lane) override;
  void cancel(rtrs::ClientLane& lane) override { lane.cancel(request_); }

  /// The answer, without tag and error; valid when finished.
  const Answer& answer() const { return answer_; }
  /// The answer to the order `extents`: at least one, from the beginning of the range on.
  const std::vector<wire::Extent>& extents() const { return extents_; }
  /// Of a member whose record has regions of another size: the shift that it tells; otherwise 0.
  unsigned other_shift() const { return other_shift_; }
  /// The mistake in the answer, for people; "" = none.
  const std::string& complaint() const { return complaint_; }

 private:
  void send_claim(rtrs::ClientLane& lane);
  void send_view(rtrs::ClientLane& lane);
  void send_confirm(rtrs::ClientLane& lane);
  void send_cool(rtrs::ClientLane& lane);
  void send_pull(rtrs::ClientLane& lane);
  void send_dissolve(rtrs::ClientLane& lane);
  void ask_echo(rtrs::ClientLane& lane);
  void ask_room(rtrs::ClientLane& lane);
  void ask_regions(rtrs::ClientLane& lane);
  void ask_status(rtrs::ClientLane& lane);
  void ask_extents(rtrs::ClientLane& lane);
  std::uint64_t asked_bytes() const;
  template <class T>
  void send(rtrs::ClientLane& lane, T message, bool question);
  std::vector<std::byte> data_of_view() const;

  static void on_renew(rtrs::Request& request);
  static void on_done(rtrs::ClientLane& lane, rtrs::Request& request);
  void answered(rtrs::ClientLane& lane, int error);
  void claimed(rtrs::ClientLane& lane, int error);
  void told_regions(rtrs::ClientLane& lane);
  void told_status(rtrs::ClientLane& lane);
  void told_extents(int error);
  void told_room();
  void take_device_id();
  std::string judge(const wire::MirrorClaimResponse& response);
  bool is_vote() const { return command_.member == shape_.members; }
  unsigned region_shift() const;
  wire::MirrorViewFields recorded(const View& view) const;
  unsigned number() const { return is_vote() ? kVote : command_.member; }
  RegionMap& asked_map();
  Maps& maps();
  void fail(std::string complaint);
  void found_data();

  const Command command_;
  const GroupShape shape_;
  const DeviceHandle& device_;
  const std::size_t room_;
  const std::string source_;
  std::array<std::byte, sizeof(wire::MirrorVoteClaim)> message_{};
  std::vector<std::byte> data_;
  rtrs::Request request_;
  unsigned other_shift_ = 0;
  bool claiming_ = false;    ///< the answer to the CLAIM is awaited
  unsigned which_ = 0;       ///< map that is asked for, as in REGIONS
  std::uint32_t first_ = 0;  ///< region of the next page
  std::uint64_t empty_ = 0;  ///< bytes from the beginning that are known to be zeroes
  std::vector<wire::Extent> extents_;
  Answer answer_;
  std::string complaint_;
};

/// A map that fits into `room` bytes. If it has too many gaps, some are filled.
std::vector<std::byte> regions_within(const RegionMap& map, std::size_t room);

}  // namespace rnbd::mirror
