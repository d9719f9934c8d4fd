// SPDX-License-Identifier: BSD-3-Clause
// The queue of a lane's requests that cannot be sent yet.
#pragma once

#include <algorithm>

#include "rdma/core/client/delivery_wait.hpp"
#include "rdma/core/client/permit_shares.hpp"
#include "rdma/core/client/request.hpp"

namespace rtrs {

/// The requests of a lane that wait for a permit, for a path, or for the end of an older request.
/// The oldest is in front. They are chained by pointers of their own, so nothing is allocated, and
/// one leaves in the same time however many there are.
///
/// Invariant: a request is in the queue, and in that of its owner, exactly while its state is
///            `waiting`.
/// Threads:   the holder of the lane.
class WaitingRequests {
 public:
  explicit WaitingRequests(PermitShares& shares) : shares_{shares} {}

  class Iterator {
   public:
    explicit Iterator(Request* at) : at_{at} {}
    Request& operator*() const { return *at_; }
    Iterator& operator++() {
      at_ = at_->next;
      return *this;
    }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    Request* at_;
  };
  Iterator begin() const { return Iterator{all_.head}; }
  Iterator end() const { return Iterator{nullptr}; }

  bool empty() const { return all_.head == nullptr; }
  Request* front() const { return all_.head; }  ///< null: there is none
  /// The oldest with a property. Null: none has it.
  template <class Property>
  Request* find(Property has) const {
    Request* request = all_.head;
    while (request != nullptr && !has(*request)) request = request->next;
    return request;
  }

  void push_back(Request& request) {
    request.state = Request::State::waiting;
    all_.push_back(request);
    shares_.wait_last(request);
  }
  /// For one that was sent before.
  void push_front(Request& request) {
    request.state = Request::State::waiting;
    all_.push_front(request);
    shares_.wait_first(request);
  }
  /// Takes the request out. The caller gives it another state.
  void remove(Request& request) {
    all_.remove(request);
    shares_.leave(request);
  }

  // The waits for a connection that carries the request
  void on_arrived() {
    for (Request& request : *this) request.waits_since = DeliveryWait::kNever;
  }
  /// For those with a property.
  template <class Property>
  void on_mute(Instant now, Property has) {
    for (Request& request : *this) {
      if (has(request)) request.waits_since = std::min(request.waits_since, now);
    }
  }
  void put_off_waits(Duration pause) {
    for (Request& request : *this) {
      if (request.waits_since != DeliveryWait::kNever) request.waits_since += pause;
    }
  }

 private:
  RequestChain<&Request::previous, &Request::next> all_;
  PermitShares& shares_;
};

}  // namespace rtrs
