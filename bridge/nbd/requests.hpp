// SPDX-License-Identifier: BSD-3-Clause
// The requests of one connection, which uses their memory again and again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

#include "bridge/nbd/budget.hpp"
#include "bridge/nbd/buffer_pool.hpp"
#include "bridge/nbd/request.hpp"

namespace rnbd::nbd {

/// Counts the requests under way, and limits them and their memory.
///
/// Threads: that of its connection.
class Requests {
 public:
  Requests(Connection* connection, BufferPool& buffers, Budget& memory)
      : connection_{connection}, buffers_{buffers}, memory_{memory, kOwnMemory} {}

  std::size_t in_flight() const { return in_flight_; }
  /// One is under way, and so it has usually been lately.
  bool is_single() const { return in_flight_ == 1 && singles_ >= kUsual; }
  /// True: one more may begin. It always may while none is under way; otherwise the end of one
  /// that is makes room.
  bool has_room() const {
    if (in_flight_ == 0) return true;
    return in_flight_ < kMaxInFlight && memory_.has() < kMaxMemory && memory_.may_grow();
  }
  /// Allocates only if more are under way than ever before.
  Request& take() {
    if (free_ == nullptr) {
      free_ = &all_.emplace_back();
      free_->connection = connection_;
      free_->job.context = free_;
    }
    singles_ = ++in_flight_ == 1 ? singles_ + 1 : 0;
    Request* const request = free_;
    free_ = request->next;
    return *request;
  }
  /// False: there is no memory.
  bool take_buffer(Request& request, std::size_t bytes) {
    request.buffer = buffers_.take(bytes);
    memory_.take(request.buffer.size);
    return request.buffer.size != 0;
  }
  void give_back(Request& request) {
    memory_.give_back(request.buffer.size);
    buffers_.give_back(std::move(request.buffer));
    request.buffer = {};
    request.state = Request::State::free;
    request.next = free_;
    free_ = &request;
    --in_flight_;
  }
  /// True: some may still change the device.
  bool are_changing() const {
    return std::ranges::any_of(all_, [](const Request& request) {
      const bool runs = request.state == Request::State::on_lane ||
                        request.state == Request::State::claiming ||
                        request.state == Request::State::blocking;
      return runs && request.changes();
    });
  }
  /// The requests of all states.
  std::deque<Request>& all() { return all_; }

 private:
  static constexpr std::size_t kMaxInFlight = 256;
  /// Units: bytes; the last request may exceed it.
  static constexpr std::size_t kMaxMemory = 64 * 1024 * 1024;
  /// Bytes that every connection has for itself: enough for many small requests.
  static constexpr std::size_t kOwnMemory = 1024 * 1024;
  /// A client that begins to send more at a time loses is_single() once.
  static constexpr unsigned kUsual = 16;

  Connection* const connection_;
  BufferPool& buffers_;
  Share memory_;  ///< bytes of their buffers
  std::deque<Request> all_;
  Request* free_ = nullptr;
  std::size_t in_flight_ = 0;
  unsigned singles_ = 0;  ///< in a row that came one at a time
};

}  // namespace rnbd::nbd
