// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/readiness.hpp"

#include <sys/epoll.h>

#include <array>
#include <boost/asio/detail/epoll_reactor.hpp>
#include <boost/asio/detail/reactor_op.hpp>
#include <cerrno>
#include <system_error>
#include <utility>

namespace rtrs {

namespace detail = boost::asio::detail;
using boost::system::error_code;
using detail::epoll_reactor;

// ---- Peers that have closed ---------------------------------------------------------------------

HangUps::HangUps(boost::asio::io_context& io) : events_{io} {
  const int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0) throw std::system_error{errno, std::generic_category(), "epoll_create1"};
  events_.assign(epoll);
  wait();
}

int HangUps::add(int descriptor, HangUpHandler& handler) {
  epoll_event event{};
  event.events = EPOLLRDHUP | EPOLLET;
  event.data.ptr = &handler;
  return epoll_ctl(events_.native_handle(), EPOLL_CTL_ADD, descriptor, &event) == 0 ? 0 : errno;
}

void HangUps::remove(int descriptor) {
  epoll_ctl(events_.native_handle(), EPOLL_CTL_DEL, descriptor, nullptr);
}

void HangUps::wait() {
  events_.async_wait(boost::asio::posix::stream_descriptor::wait_read, [this](error_code error) {
    if (error) return;
    // One at a time: its handler may remove others.
    epoll_event event{};
    const int count = epoll_wait(events_.native_handle(), &event, 1, 0);
    wait();
    if (count == 1) static_cast<HangUpHandler*>(event.data.ptr)->on_hang_up();
  });
}

// ---- Edges --------------------------------------------------------------------------------------

/// The operation that Asio has in its queue; used again and again.
struct Readiness::Wait final : detail::reactor_op {
  Wait(ReadinessHandler& h, void (ReadinessHandler::*f)())
      : reactor_op(error_code{}, &Wait::perform, &Wait::complete), handler{&h}, tell{f} {}

  /// There is nothing to do, and nothing more until the next edge.
  static status perform(reactor_op*) { return done_and_exhausted; }
  static void complete(void* owner, detail::operation* base, const error_code&, std::size_t) {
    auto* const self = static_cast<Wait*>(base);
    self->pending = false;
    if (self->handler == nullptr) {
      delete self;
    } else if (owner != nullptr && !self->ec_) {
      (self->handler->*self->tell)();
    }
  }
  /// The wait goes when Asio has let go of it.
  void abandon() {
    handler = nullptr;
    if (!pending) delete this;
  }

  ReadinessHandler* handler;
  void (ReadinessHandler::*tell)();
  bool pending = false;
};

struct Readiness::Registration {
  epoll_reactor& reactor;
  int descriptor;
  std::unique_ptr<Wait> read;
  std::unique_ptr<Wait> write;
  epoll_reactor::per_descriptor_data data{};
};

Readiness::Readiness(boost::asio::io_context& io, HangUps& hang_ups, int descriptor,
                     ReadinessHandler& handler)
    : hang_ups_{hang_ups}, handler_{handler} {
  auto& reactor = boost::asio::use_service<epoll_reactor>(io);
  reactor.init_task();
  // The steps that may lack memory come before those that have to be undone.
  auto registration = std::make_unique<Registration>(Registration{
      reactor, descriptor, std::make_unique<Wait>(handler, &ReadinessHandler::on_readable),
      std::make_unique<Wait>(handler, &ReadinessHandler::on_writable)});
  int error = reactor.register_descriptor(descriptor, registration->data);
  if (error != 0) throw std::system_error{error, std::generic_category(), "epoll_ctl"};
  registration_ = std::move(registration);
  error = hang_ups_.add(descriptor, *this);
  if (error == 0) return;
  close();
  throw std::system_error{error, std::generic_category(), "epoll_ctl"};
}

Readiness::~Readiness() { close(); }

void Readiness::close() {
  if (!registration_) return;
  const std::unique_ptr<Registration> last = std::move(registration_);
  hang_ups_.remove(last->descriptor);
  // Waits under way end with an error, in a later event.
  last->reactor.deregister_descriptor(last->descriptor, last->data, /*closing=*/false);
  last->reactor.cleanup_descriptor_data(last->data);
  last->read.release()->abandon();
  last->write.release()->abandon();
}

void Readiness::start(Wait& wait, int kind, bool speculative) {
  if (wait.pending) return;
  wait.pending = true;
  wait.ec_ = error_code{};
  registration_->reactor.start_op(kind, registration_->descriptor, registration_->data, &wait,
                                  /*is_continuation=*/false, speculative);
}

void Readiness::wait_to_read() { start(*registration_->read, epoll_reactor::read_op, true); }
void Readiness::wait_to_write() { start(*registration_->write, epoll_reactor::write_op, false); }

void Readiness::on_hang_up() {
  hung_up_ = true;
  if (!registration_->read->pending) return;  // a reader without a wait looks by itself
  handler_.on_readable();
}

}  // namespace rtrs
