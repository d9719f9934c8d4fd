// SPDX-License-Identifier: BSD-3-Clause
// Messages of a client to the members of its mirror group.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "bridge/protocol/messages.hpp"
#include "bridge/protocol/mirror_messages.hpp"
#include "bridge/server/io_plan.hpp"
#include "bridge/server/open_table.hpp"
#include "bridge/server/session_facts.hpp"
#include "bridge/server/session_log.hpp"
#include "bridge/server/surroundings.hpp"
#include "rdma/core/server/request.hpp"

namespace rnbd {

/// Claims, the orders of the claimant, and the copy of data from another member. The rules are
/// those of mirror::Seat. A message under way keeps the session.
///
/// Threads: the reactor of the session.
/// Source:  docs/protocol.md, RNBD messages.
class MemberMessages {
 public:
  /// Answers a request that counts as running at the backend. The session may end with it.
  using Ending = std::function<void(int error)>;
  using Begin =
      std::function<Ending(rtrs::ServerRequest& request, Device& device, const IoPlan& plan)>;

  /// `begin` counts a request as running at the backend.
  MemberMessages(const SessionFacts& facts, const OpenTable& devices,
                 const Surroundings& surroundings, rtrs::Reactor* reactor, SessionLog& log,
                 Begin begin)
      : facts_{facts},
        devices_{devices},
        surroundings_{surroundings},
        reactor_{reactor},
        log_{log},
        begin_{std::move(begin)} {}

  void on_request(rtrs::ServerRequest& request, wire::MessageType type);

 private:
  struct Claiming;
  using ClaimingPtr = std::shared_ptr<Claiming>;
  struct Pull;
  using PullPtr = std::shared_ptr<Pull>;

  int unfit_as_member(const Device& device, const wire::MirrorClaim& claim);
  void claim(rtrs::ServerRequest& request);
  void turn(const ClaimingPtr& claiming);
  void grant(const ClaimingPtr& claiming);
  void granted(const ClaimingPtr& claiming, int error);
  void end(const ClaimingPtr& claiming, int error, bool refused);
  void view(rtrs::ServerRequest& request);
  void confirm(rtrs::ServerRequest& request);
  void regions(rtrs::ServerRequest& request);
  void cool(rtrs::ServerRequest& request);
  void guest(rtrs::ServerRequest& request);
  void ended(rtrs::ServerRequest& request, mirror::Seat& seat, int error);

  // member_pull.cpp: a member copies from another one
  void pull(rtrs::ServerRequest& request);
  void pull_next(const PullPtr& pull);
  void write_pulled(const PullPtr& pull, int error);

  const SessionFacts& facts_;
  const OpenTable& devices_;
  const Surroundings& surroundings_;
  rtrs::Reactor* const reactor_;
  SessionLog& log_;
  const Begin begin_;
};

}  // namespace rnbd
