// SPDX-License-Identifier: BSD-3-Clause
// The share of a lane's permits that each owner of requests has.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "rdma/core/client/request.hpp"

namespace rtrs {

/// Requests in a row, by two of their pointers.
template <Request* Request::*previous, Request* Request::*next>
struct RequestChain {
  Request* head = nullptr;
  Request* tail = nullptr;

  void push_back(Request& request) {
    request.*previous = tail;
    request.*next = nullptr;
    (tail != nullptr ? tail->*next : head) = &request;
    tail = &request;
  }
  void push_front(Request& request) {
    request.*previous = nullptr;
    request.*next = head;
    (head != nullptr ? head->*previous : tail) = &request;
    head = &request;
  }
  void remove(Request& request) {
    (request.*previous != nullptr ? request.*previous->*next : head) = request.*next;
    (request.*next != nullptr ? request.*next->*previous : tail) = request.*previous;
    request.*previous = request.*next = nullptr;
  }
};

/// An owner of requests that has permits, or waits for one.
struct PermitOwner {
  const Unresolved* who = nullptr;
  std::size_t held = 0;  ///< permits
  RequestChain<&Request::previous_of_owner, &Request::next_of_owner> waiting;
  PermitOwner* previous = nullptr;  ///< in its line
  PermitOwner* next = nullptr;
};

/// Counts the permits of each owner, and knows whose request is next: the oldest one of the owner
/// that has the fewest. The last eighth of the permits is for owners that have fewer than are left.
/// So an owner whose requests hang takes a part of that, and some of it remains.
///
/// Invariant: an owner stands in the line of those with as many permits exactly while it waits. The
///            last line is of all that have an eighth or more.
/// Threads:   the holder of the lane.
class PermitShares {
 public:
  /// `permits`: of the lane.
  explicit PermitShares(std::size_t permits) : lines_(permits / 8 + 1) {}
  PermitShares(const PermitShares&) = delete;
  PermitShares& operator=(const PermitShares&) = delete;

  /// `free`: the number of permits that nobody has.
  bool within_share(const Request& request, std::size_t free) const;

  /// A permit is taken for a request, or comes back. `owner` may be gone by then.
  void take(const Unresolved* owner) { count(owner, +1); }
  void give_back(const Unresolved* owner) { count(owner, -1); }

  // A request waits, as the last or the first one of its owner, and waits no more.
  void wait_last(Request& request);
  void wait_first(Request& request);
  void leave(Request& request);

  /// The request that gets one of the `free` permits, of those that `may_go`. Null: there is none.
  template <class MayGo>
  Request* next(std::size_t free, MayGo may_go) const {
    for (std::size_t held = 0; held < lines_.size() && has_room(held, free); ++held) {
      for (const PermitOwner* owner = lines_[held].head; owner != nullptr; owner = owner->next) {
        Request* request = owner->waiting.head;
        while (request != nullptr && !may_go(*request)) request = request->next_of_owner;
        if (request != nullptr) return request;
      }
    }
    return nullptr;
  }

 private:
  struct Line {
    PermitOwner* head = nullptr;
    PermitOwner* tail = nullptr;
  };

  bool has_room(std::size_t held, std::size_t free) const {
    return free >= lines_.size() || held < free;
  }
  PermitOwner& owner_of(const Unresolved* who);
  PermitOwner& begin_wait(Request& request);
  void count(const Unresolved* who, int change);
  Line& line_of(const PermitOwner& owner);
  void enter_line(PermitOwner& owner);
  void leave_line(PermitOwner& owner);
  void forget_one_of_many(PermitOwner& owner);

  std::map<const Unresolved*, PermitOwner> owners_;
  std::vector<Line> lines_;
};

}  // namespace rtrs
