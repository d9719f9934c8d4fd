// SPDX-License-Identifier: BSD-3-Clause
// Carries NBD requests out: the half of Connection that knows devices.
#include <cerrno>

#include "bridge/nbd/connection.hpp"
#include "bridge/nbd/worker.hpp"

namespace rnbd::nbd {
namespace {

constexpr std::size_t kMaxCalls = 16;  ///< at the same time

}  // namespace

void Connection::execute(Request& request) {
  meter_.begin(request);
  const int error = commands_.prepare(request);
  if (error == EAGAIN) return call(request);
  if (error != 0) return answer(request, error);
  request.operation.emplace(agreement_.device->geometry(), agreement_.device->handle(),
                            request.transfer);
  request.job.operation = &*request.operation;
  request.state = Request::State::on_lane;
  worker_.start(request);
}

void Connection::on_lane(Request& request) {
  const int error =
      agreement_.device->end(request.transfer, request.begun, request.operation->error());
  request.operation.reset();
  if (error == EAGAIN && !left()) return call(request);
  answer(request, error);
}

// ---- Calls that may wait ------------------------------------------------------------------------

void Connection::call(Request& request) {
  request.state = Request::State::waiting;
  waiting_.push_back(&request);
  start_calls();
}

/// Each takes a thread, so there are few at a time. The rest waits for the end of one of them.
void Connection::start_calls() {
  while (!waiting_.empty() && calls_.has() < kMaxCalls && calls_.may_grow()) {
    Request& request = *waiting_.front();
    waiting_.pop_front();
    calls_.take(1);
    request.state = Request::State::blocking;
    worker_.call(
        [this, &request] {
          const Interrupt interrupt{
              [](void* context) { return static_cast<Connection*>(context)->given_up_.load(); },
              this};
          return commands_.call(request, interrupt);
        },
        request);
  }
}

void Connection::on_call(Request& request, int error) {
  calls_.give_back(1);
  answer(request, error);
  start_calls();
}

// ---- Answers ------------------------------------------------------------------------------------

void Connection::answer(Request& request, int error) {
  if (left()) return recycle(request);
  meter_.end(request, error);
  if (error != 0) meter_.report(request, error);
  request.error = error;
  make_reply(request, agreement_.structured);
  request.state = Request::State::answered;
  replies_.push(request);
}

}  // namespace rnbd::nbd
