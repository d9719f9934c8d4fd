// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/librnbd/handle.hpp"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

#include "rdma/library/options.hpp"

namespace rnbd::library {
namespace {

using Clock = std::chrono::steady_clock;
using wire::IoOperation;

/// The time for others to give memory back.
constexpr std::chrono::milliseconds kPause{1};
/// LaneLoop::await() takes so long at most, and looks at no clock.
constexpr int kAwait = 20;              ///< milliseconds
constexpr std::size_t kMostCalls = 16;  ///< threads of a handle for calls that may wait

bool is_ready(const pollfd& descriptor) { return descriptor.revents != 0; }

// ---- Sets of epoll(7); errors: std::system_error

rtrs::OwnedFd make_set() {
  rtrs::OwnedFd set{::epoll_create1(EPOLL_CLOEXEC)};
  if (!set) throw std::system_error{errno, std::generic_category(), "epoll_create1"};
  return set;
}

/// `events`: those of poll(2), whose bits are the same.
bool try_to_put(int set, int how, int descriptor, short events) {
  epoll_event event{.events = static_cast<std::uint32_t>(events), .data = {.fd = descriptor}};
  return ::epoll_ctl(set, how, descriptor, &event) == 0;
}

void put(int set, int how, int descriptor, short events) {
  if (!try_to_put(set, how, descriptor, events))
    throw std::system_error{errno, std::generic_category(), "epoll_ctl"};
}

constexpr std::uint32_t kFlagsOfChange = RNBD_FUA;
constexpr std::uint32_t kFlagsOfZeroes = RNBD_FUA | RNBD_KEEP | RNBD_FAST;

std::uint32_t flags_of(std::uint32_t operation) {
  switch (operation) {
    case RNBD_WRITE:
    case RNBD_DISCARD:
      return kFlagsOfChange;
    case RNBD_WRITE_ZEROES:
      return kFlagsOfZeroes;
    default:
      return 0;
  }
}

IoOperation operation_of(std::uint32_t operation) {
  switch (operation) {
    case RNBD_WRITE:
      return IoOperation::write;
    case RNBD_FLUSH:
      return IoOperation::flush;
    case RNBD_DISCARD:
      return IoOperation::discard;
    case RNBD_WRITE_ZEROES:
      return IoOperation::write_zeroes;
    default:
      return IoOperation::read;
  }
}

}  // namespace

Handle::Handle(std::unique_ptr<Place> place)
    : place_{std::move(place)}, requests_(place_->attachment().depth()) {
  for (Request& request : requests_) {
    request.disk = &disk();
    request.job.context = &request;
    request.job.on_finish = [](rtrs::LaneLoop::Job& job) {
      auto& ended = *static_cast<Request*>(job.context);
      ended.disk->let_others_in(ended.begun);  // perhaps long before the user reaps
    };
    request.next = std::exchange(free_, &request);
  }
}

Handle::~Handle() {
  cancel_all();
  calls_.reset();
  if (observer_ != nullptr) attachment().close(observer_);
}

// ---- Requests come ------------------------------------------------------------------------------

std::size_t Handle::submit(std::span<const rnbd_request> requests) {
  std::size_t taken = 0;
  const unsigned before = on_lane_;
  for (; taken < requests.size() && free_ != nullptr; ++taken) take(requests[taken]);
  if (on_lane_ != before) place_->lane().flush();
  if (watch_) watch();
  return taken;
}

void Handle::take(const rnbd_request& from) {
  Request& request = *std::exchange(free_, free_->next);
  ++pending_;
  const int error = read(from, request);
  if (error != 0) {
    end(request, error);
  } else if (request.looks) {
    call(request);
  } else {
    begin(request);
  }
}

/// Errors: EINVAL.
int Handle::read(const rnbd_request& from, Request& request) const {
  request.cookie = from.cookie;
  request.looks = from.operation == RNBD_LOOK;
  if (from.operation > RNBD_LOOK || from.reserved != 0) return EINVAL;
  if ((from.flags & ~flags_of(from.operation)) != 0) return EINVAL;
  const bool has_data = from.operation == RNBD_READ || from.operation == RNBD_WRITE;
  const bool has_range = from.operation != RNBD_FLUSH && from.operation != RNBD_LOOK;
  if (!has_range && (from.offset != 0 || from.length != 0)) return EINVAL;
  if (has_data && from.data == nullptr && from.length != 0) return EINVAL;
  if (!has_data && from.data != nullptr) return EINVAL;
  request.wanted = {.operation = operation_of(from.operation),
                    .offset = from.offset,
                    .length = from.length,
                    .fua = (from.flags & RNBD_FUA) != 0,
                    .no_unmap = (from.flags & RNBD_KEEP) != 0,
                    .fast = (from.flags & RNBD_FAST) != 0};
  if (from.operation == RNBD_READ) request.wanted.into = static_cast<std::byte*>(from.data);
  if (from.operation == RNBD_WRITE) request.wanted.from = static_cast<std::byte*>(from.data);
  return 0;
}

void Handle::begin(Request& request) {
  request.transfer = request.wanted;
  int error = 0;
  try {
    error = disk().begin(request.transfer, request.begun);
  } catch (const std::bad_alloc&) {
    error = ENOMEM;
  }
  if (error == EAGAIN) return call(request);
  if (error != 0) return end(request, error);
  const bool is_flush = request.transfer.operation == IoOperation::flush;
  if (request.transfer.length == 0 && !is_flush)
    return end(request, disk().end(request.transfer, request.begun, 0));
  request.operation.emplace(disk().geometry(), disk().handle(), request.transfer);
  request.job.operation = &*request.operation;
  request.state = Request::State::on_lane;
  ++on_lane_;
  place_->lane().start(request.job);
}

// ---- On a thread that may wait ------------------------------------------------------------------

/// The lane's thread must not wait for an answer: it would not be there to receive it.
void Handle::call(Request& request) {
  request.state = Request::State::calling;
  try {
    const rtrs::library::NoSignals no_signals;  // in threads that it starts
    if (!calls_) calls_.emplace(kMostCalls);
    calls_->post([this, &request] { request.error = run(request); },
                 [this, &request] { called_.post(&request); });
    ++calling_;
  } catch (const std::bad_alloc&) {
    end(request, ENOMEM);
  } catch (const std::exception&) {
    end(request, EAGAIN);  // the first thread did not start
  }
}

int Handle::run(Request& request) {
  if (given_up_) return EINTR;  // so that many of them end at once
  if (request.looks) return look();
  const Interrupt interrupt{[](void* self) { return static_cast<Handle*>(self)->given_up_.load(); },
                            this};
  const bool is_flush = request.wanted.operation == IoOperation::flush;
  return is_flush ? disk().flush(interrupt) : disk().run(request.wanted, interrupt);
}

int Handle::look() {
  const Interrupt interrupt{[](void* self) { return static_cast<Handle*>(self)->given_up_.load(); },
                            this};
  const std::lock_guard lock{look_mutex_};
  if (observer_ == nullptr) {
    auto opened = attachment().observe(interrupt);
    if (!opened) return opened.error().error;
    observer_ = *opened;
  }
  if (auto looked = observer_->look_again(interrupt); !looked) return looked.error().error;
  found_size_ = observer_->geometry().size;
  return 0;
}

// ---- Their ends ---------------------------------------------------------------------------------

void Handle::on_lane(Request& request) {
  --on_lane_;
  const int error = disk().end(request.transfer, request.begun, request.operation->error());
  request.operation.reset();
  if (error == EAGAIN && !given_up_) return call(request);
  end(request, error);
}

/// Calls read the size, so that it changes when there are none.
void Handle::on_call(Request& request) {
  --calling_;
  end(request, request.error);
  const std::uint64_t size = found_size_;
  if (calling_ == 0 && size > disk().geometry().size) disk().grow_to(size);
}

void Handle::end(Request& request, int error) {
  request.state = Request::State::ended;
  request.error = error;
  request.next = nullptr;
  (last_ended_ != nullptr ? last_ended_->next : first_ended_) = &request;
  last_ended_ = &request;
}

void Handle::take_ended() {
  for (rtrs::LaneLoop::Job* job = place_->lane().collect(); job != nullptr;) {
    auto& request = *static_cast<Request*>(job->context);
    job = job->next;
    on_lane(request);
  }
  if (calling_ == 0) return;
  letters_.clear();
  called_.take(letters_);
  for (Request* request : letters_) on_call(*request);
}

std::size_t Handle::tell(std::span<rnbd_end> ends) {
  std::size_t told = 0;
  for (; told < ends.size() && first_ended_ != nullptr; ++told) {
    Request& request = *first_ended_;
    first_ended_ = request.next;
    if (first_ended_ == nullptr) last_ended_ = nullptr;
    ends[told] = {request.cookie, request.error, 0};
    request.state = Request::State::free;
    request.next = std::exchange(free_, &request);
    --pending_;
  }
  return told;
}

std::size_t Handle::reap(std::span<rnbd_end> ends, int timeout) {
  const bool limited = timeout > 0;
  const auto until =
      limited ? Clock::now() + std::chrono::milliseconds{timeout} : Clock::time_point{};
  std::size_t told = 0;
  for (;;) {
    take_ended();
    told = tell(ends);
    if (told != 0 || ends.empty()) break;
    if (pending_ == 0) {
      if (watch_) wait(0);  // a kick, or the end of a connection, makes its descriptor readable
      break;
    }
    int rest = timeout;
    if (limited) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
      rest = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    }
    // One request that is alone is waited for in the receive.
    const bool alone = on_lane_ == 1 && calling_ == 0 && (rest < 0 || rest > kAwait);
    if (alone && place_->lane().await()) continue;
    if (!wait(rest)) {
      take_ended();
      told = tell(ends);
      break;
    }
  }
  if (watch_) watch();
  return told;
}

int Handle::run_alone(const rnbd_request& request) {
  if (pending_ != 0) return EBUSY;
  take(request);
  place_->lane().flush();
  rnbd_end end{};
  std::size_t ended = 0;
  while (ended == 0) ended = reap({&end, 1}, -1);
  return end.error;
}

/// False: nothing came in time, or a signal did, or memory lacks for now.
bool Handle::wait(int timeout) {
  polled_.clear();
  try {
    polled_.push_back({called_.descriptor(), POLLIN, 0});
    place_->lane().watch(polled_);
  } catch (const std::bad_alloc&) {
    std::this_thread::sleep_for(kPause);  // the caller comes again
    return false;
  }
  if (::poll(polled_.data(), polled_.size(), more_ ? 0 : timeout) <= 0 && !more_) return false;
  const std::span lane{polled_.data() + 1, polled_.size() - 1};
  if (watch_ && is_ready(lane[0]) && !attachment().is_of_annex()) watch_->kicked = true;
  if (more_ || std::ranges::any_of(lane, is_ready)) more_ = place_->lane().progress(lane);
  return true;
}

// ---- For the user's own loop --------------------------------------------------------------------

int Handle::descriptor() {
  if (!watch_) set_up_watch();
  return watch_->outer.get();
}

void Handle::set_up_watch() {
  Watch made;
  made.outer = make_set();
  put(made.outer.get(), EPOLL_CTL_ADD, made.due.descriptor(), POLLIN);
  put(made.outer.get(), EPOLL_CTL_ADD, called_.descriptor(), POLLIN);
  watch_.emplace(std::move(made));
  watch();
}

/// Lets the descriptor show what there is to do. If something lacks for that, it stays readable,
/// so that the user comes again.
void Handle::watch() noexcept {
  take_ended();  // some may have ended at once, or in the background
  Watch& watch = *watch_;
  bool lacks = false;
  try {
    watch_lane();
  } catch (const std::exception&) {
    watch.kicked = lacks = true;
  }
  const bool due = first_ended_ != nullptr || more_ || lacks;
  if (due == watch.is_due) return;
  watch.is_due = due;
  due ? watch.due.wake() : watch.due.clear();
}

/// Lets the set have what the lane wants to be watched. The number of a connection that was closed
/// may be another one's now, which no list tells, so after a kick, which that takes, the set is
/// made anew. The connections of other disks than devices kick in places of their own.
void Handle::watch_lane() {
  Watch& watch = *watch_;
  watch.wanted.clear();
  place_->lane().watch(watch.wanted);
  std::erase_if(watch.wanted, [](const pollfd& each) { return each.fd < 0; });
  const auto is_wanted = [&](const pollfd& known) {
    return std::ranges::find(watch.wanted, known.fd, &pollfd::fd) != watch.wanted.end();
  };
  const bool same_set = !std::exchange(watch.kicked, false) &&
                        std::ranges::all_of(watch.known, is_wanted) && change_watch();
  if (!same_set) renew_watch();
  watch.known.swap(watch.wanted);
}

/// False: a descriptor that the set had is closed, and the number is another one's.
bool Handle::change_watch() {
  const Watch& watch = *watch_;
  const bool all = attachment().is_of_annex();
  for (const pollfd& each : watch.wanted) {
    const auto known = std::ranges::find(watch.known, each.fd, &pollfd::fd);
    if (known == watch.known.end()) {
      put(watch.inner.get(), EPOLL_CTL_ADD, each.fd, each.events);
    } else if (all || known->events != each.events) {
      if (!try_to_put(watch.inner.get(), EPOLL_CTL_MOD, each.fd, each.events)) return false;
    }
  }
  return true;
}

/// A set has a descriptor that was closed as long as a child of fork() has a copy, and nobody can
/// take it out. So the set goes instead, out of the one that the user knows.
void Handle::renew_watch() {
  Watch& watch = *watch_;
  rtrs::OwnedFd fresh = make_set();
  for (const pollfd& each : watch.wanted) put(fresh.get(), EPOLL_CTL_ADD, each.fd, each.events);
  put(watch.outer.get(), EPOLL_CTL_ADD, fresh.get(), POLLIN);
  if (watch.inner) try_to_put(watch.outer.get(), EPOLL_CTL_DEL, watch.inner.get(), 0);
  watch.inner = std::move(fresh);
}

// ---- The end ------------------------------------------------------------------------------------

void Handle::cancel_all() {
  given_up_ = true;
  for (Request& request : requests_) {
    if (request.state != Request::State::on_lane) continue;
    if (!place_->lane().cancel(request.job)) continue;  // it has ended, and the lane returns it
    --on_lane_;
    end(request, disk().end(request.transfer, request.begun, EINTR));
    request.operation.reset();
  }
  for (;;) {
    take_ended();
    if (on_lane_ == 0 && calling_ == 0) return;
    wait(-1);
  }
}

}  // namespace rnbd::library
