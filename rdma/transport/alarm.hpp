// SPDX-License-Identifier: BSD-3-Clause
// A timer of which only the newest setting counts.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <memory>
#include <utility>

#include "rdma/core/time.hpp"

namespace rtrs {

/// Calls a function later, unless it is set again, cancelled or destroyed before. A bare timer does
/// not promise that: when it has expired, its handler may be queued already, and cancelling reaches
/// it no more.
///
/// Threads: one, that of the io_context.
class Alarm {
 public:
  explicit Alarm(boost::asio::io_context& io) : timer_{io} {}
  ~Alarm() { ++*setting_; }
  Alarm(const Alarm&) = delete;
  Alarm& operator=(const Alarm&) = delete;

  template <class Function>
  void set(Duration delay, Function function) {
    timer_.expires_after(delay);
    timer_.async_wait([current = setting_, mine = ++*setting_,
                       function = std::move(function)](boost::system::error_code cancelled) {
      if (!cancelled && *current == mine) function();
    });
  }
  void cancel() {
    ++*setting_;
    timer_.cancel();
  }

 private:
  boost::asio::steady_timer timer_;
  std::shared_ptr<std::uint64_t> setting_ = std::make_shared<std::uint64_t>(0);
};

}  // namespace rtrs
