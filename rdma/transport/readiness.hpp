// SPDX-License-Identifier: BSD-3-Clause
// Learns when a connection's descriptor becomes readable, without a system call each time.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>

namespace rtrs {

/// Gets the event.
class HangUpHandler {
 public:
  virtual void on_hang_up() = 0;

 protected:
  ~HangUpHandler() = default;
};

/// Notices that peers have closed their sockets, which edges alone do not tell. Data and the end of
/// the stream may come with one edge, and a short read proves only that the data were read.
///
/// Threads: that of the io_context.
/// Source:  epoll_ctl(2), EPOLLRDHUP.
class HangUps {
 public:
  explicit HangUps(boost::asio::io_context& io);
  HangUps(const HangUps&) = delete;
  HangUps& operator=(const HangUps&) = delete;

  /// The handler must live until the descriptor is removed or closed; it is told once. The result:
  /// 0, or an errno when the descriptor is not watched.
  [[nodiscard]] int add(int descriptor, HangUpHandler& handler);
  void remove(int descriptor);

 private:
  void wait();

  boost::asio::posix::stream_descriptor events_;  ///< an epoll instance of its own
};

/// Gets the events.
class ReadinessHandler {
 public:
  virtual void on_readable() = 0;
  virtual void on_writable() = 0;

 protected:
  ~ReadinessHandler() = default;
};

/// Waits for a descriptor again and again. Asio's own async_wait() arms the descriptor anew with
/// epoll_ctl(2) every time, because it knows nothing of reads in between. Here the caller has read
/// until nothing was left, so that the next edge is enough.
///
/// Threads: that of the io_context.
/// Source:  epoll(7), edge-triggered. Made of the same parts as the sockets of Boost 1.81's Asio.
class Readiness final : private HangUpHandler {
 public:
  /// The descriptor must stay open until close().
  Readiness(boost::asio::io_context& io, HangUps& hang_ups, int descriptor,
            ReadinessHandler& handler);
  ~Readiness();
  Readiness(const Readiness&) = delete;
  Readiness& operator=(const Readiness&) = delete;

  /// Tells once when something arrives, or has arrived since it was told last. The first time may
  /// be in vain.
  void wait_to_read();
  /// Tells once when the socket takes more.
  void wait_to_write();
  /// The peer will send nothing more: everything that has arrived must be read to its end.
  bool hung_up() const { return hung_up_; }
  /// Nothing is told any more.
  void close();

 private:
  struct Wait;
  struct Registration;
  void start(Wait& wait, int kind, bool speculative);
  void on_hang_up() override;

  std::unique_ptr<Registration> registration_;
  HangUps& hang_ups_;
  ReadinessHandler& handler_;
  bool hung_up_ = false;
};

}  // namespace rtrs
