// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/core/client/permit_shares.hpp"

#include <algorithm>

namespace rtrs {
namespace {

/// Owners without requests are remembered, so that the next request allocates nothing.
constexpr std::size_t kOwnersKept = 4096;

}  // namespace

bool PermitShares::within_share(const Request& request, std::size_t free) const {
  if (free >= lines_.size()) return true;
  const auto found = owners_.find(request.owner());
  return (found == owners_.end() ? 0 : found->second.held) < free;
}

void PermitShares::wait_last(Request& request) { begin_wait(request).waiting.push_back(request); }

void PermitShares::wait_first(Request& request) { begin_wait(request).waiting.push_front(request); }

PermitOwner& PermitShares::begin_wait(Request& request) {
  PermitOwner& owner = owner_of(request.owner());
  if (owner.waiting.head == nullptr) enter_line(owner);
  request.waits_as = &owner;
  return owner;
}

void PermitShares::leave(Request& request) {
  PermitOwner& owner = *request.waits_as;
  owner.waiting.remove(request);
  if (owner.waiting.head != nullptr) return;
  leave_line(owner);
  forget_one_of_many(owner);
}

void PermitShares::count(const Unresolved* who, int change) {
  PermitOwner& owner = owner_of(who);
  const bool waits = owner.waiting.head != nullptr;
  if (waits) leave_line(owner);
  owner.held += static_cast<std::size_t>(change);
  if (waits) enter_line(owner);
  forget_one_of_many(owner);
}

PermitOwner& PermitShares::owner_of(const Unresolved* who) {
  PermitOwner& owner = owners_[who];
  owner.who = who;
  return owner;
}

PermitShares::Line& PermitShares::line_of(const PermitOwner& owner) {
  return lines_[std::min(owner.held, lines_.size() - 1)];
}

void PermitShares::enter_line(PermitOwner& owner) {
  Line& line = line_of(owner);
  owner.previous = line.tail;
  owner.next = nullptr;
  (line.tail != nullptr ? line.tail->next : line.head) = &owner;
  line.tail = &owner;
}

void PermitShares::leave_line(PermitOwner& owner) {
  Line& line = line_of(owner);
  (owner.previous != nullptr ? owner.previous->next : line.head) = owner.next;
  (owner.next != nullptr ? owner.next->previous : line.tail) = owner.previous;
}

void PermitShares::forget_one_of_many(PermitOwner& owner) {
  const bool idle = owner.held == 0 && owner.waiting.head == nullptr;
  if (idle && owners_.size() > kOwnersKept) owners_.erase(owner.who);
}

}  // namespace rtrs
