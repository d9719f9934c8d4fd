// SPDX-License-Identifier: BSD-3-Clause
// Messages of a client to the members of its mirror group.
#pragma once

#include <deque>
#include <memory>

#include "bridge/protocol/messages.hpp"
#include "bridge/protocol/mirror_messages.hpp"
#include "bridge/server/annex.hpp"
#include "bridge/server/mirror/member_device.hpp"
#include "bridge/server/mirror/pull_source.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/session_parts.hpp"
#include "rdma/core/server/request.hpp"

namespace rnbd {

/// Claims, the orders of the claimant, and the copy of data from another member. The rules are
/// those of mirror::Seat.
///
/// Threads: the reactor of the session.
/// Source:  docs/protocol.md, RNBD messages.
class MemberMessages final : public SessionAnnex {
 public:
  /// `reader` is null where the server cannot read from others.
  MemberMessages(const SessionParts& session, mirror::PullReader* reader)
      : session_{session}, reader_{reader} {}
  ~MemberMessages() override;

  bool on_request(rtrs::ServerRequest& request, wire::MessageType type) override;

 private:
  struct Claiming;
  using ClaimingPtr = std::shared_ptr<Claiming>;
  struct Pull;
  using PullPtr = std::shared_ptr<Pull>;

  int unfit_as_member(const Device& device, const wire::MirrorClaim& claim);
  std::shared_ptr<mirror::Seat> vote_of(Device& device, const wire::MirrorClaim& claim, int& error);
  void claim(rtrs::ServerRequest& request);
  void turn(const ClaimingPtr& claiming);
  void grant(const ClaimingPtr& claiming);
  void granted(const ClaimingPtr& claiming, int error);
  int not_recorded(const ClaimingPtr& claiming);
  void end(const ClaimingPtr& claiming, int error, bool refused);
  void room(rtrs::ServerRequest& request);
  void view(rtrs::ServerRequest& request);
  void confirm(rtrs::ServerRequest& request);
  void regions(rtrs::ServerRequest& request);
  void cool(rtrs::ServerRequest& request);
  void guest(rtrs::ServerRequest& request);
  struct Dissolving;
  void dissolve(rtrs::ServerRequest& request);
  void dissolve_now(const std::shared_ptr<Dissolving>& dissolving);
  void ended(rtrs::ServerRequest& request, mirror::Seat& seat, int error);
  rtrs::Reactor* reactor() const;

  // member_pull.cpp: a member copies from another one
  void pull(rtrs::ServerRequest& request);
  void pull_next(const PullPtr& pull);
  void write_pulled(const PullPtr& pull, int error);
  void written(const PullPtr& pull, int error);
  void end_pull(const PullPtr& pull, int error);
  void begin_next(const mirror::MemberDevice& part);
  int why_over(Pull& pull) const;
  void watch_pulls();
  void look_at_pulls();

  const SessionParts& session_;
  mirror::PullReader* const reader_;
  std::deque<PullPtr> pulls_;      ///< in their order
  std::shared_ptr<void> watch_;    ///< the timer, while there are some
  std::shared_ptr<bool> is_used_;  ///< goes with this object; none before the first PULL
};

}  // namespace rnbd
