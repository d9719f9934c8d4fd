// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/client_handle.hpp"

#include <cerrno>
#include <chrono>
#include <exception>
#include <optional>
#include <tuple>
#include <utility>

#include "rdma/library/call_message.hpp"
#include "rdma/library/options.hpp"

using rtrs::Client;
using rtrs::Failure;
using rtrs::library::CallOperation;
using rtrs::library::CallPlan;
using rtrs::library::CallSlots;
using rtrs::library::Gate;
using rtrs::library::Submissions;

namespace {

using Clock = std::chrono::steady_clock;

/// When a call must have ended: at a time, and when the gate is closed.
struct Deadline {
  std::optional<Clock::time_point> at;
  const Gate& gate;

  Deadline(rtrs::Duration timeout, const Gate& closes) : gate{closes} {
    if (timeout != rtrs::Duration::zero()) at = Clock::now() + timeout;
  }
  static bool passed(void* context) {
    const auto& self = *static_cast<Deadline*>(context);
    return self.gate.is_closed() || (self.at && Clock::now() >= *self.at);
  }
  /// The error of a caller that gives up because of it.
  int error() const { return gate.is_closed() ? ECANCELED : ETIMEDOUT; }
};

}  // namespace

namespace rtrs::library {

tl::expected<CallPlan, int> plan_call(const void* message, std::size_t message_length,
                                      const iovec* out, int out_count, const iovec* in,
                                      int in_count, unsigned flags) {
  constexpr unsigned kFlags = RTRS_REPEATABLE | RTRS_RESEND | RTRS_NOWAIT | RTRS_CONTROL;
  const bool nothing_there = (message == nullptr && message_length != 0) ||
                             (out == nullptr && out_count != 0) || (in == nullptr && in_count != 0);
  if ((flags & ~kFlags) != 0 || out_count < 0 || in_count < 0 || nothing_there) {
    return tl::unexpected(EINVAL);
  }
  if (message_length > kMaxMessage) return tl::unexpected(EMSGSIZE);
  CallPlan plan;
  plan.message = {static_cast<const std::byte*>(message), message_length};
  plan.out = SgList{{out, static_cast<std::size_t>(out_count)}};
  plan.in = SgList{{in, static_cast<std::size_t>(in_count)}};
  plan.room = plan.in.size();
  plan.repeatable = (flags & RTRS_REPEATABLE) != 0;
  plan.resend = (flags & RTRS_RESEND) != 0;
  plan.no_wait = (flags & RTRS_NOWAIT) != 0;
  return plan;
}

}  // namespace rtrs::library

tl::expected<std::unique_ptr<rtrs_client>, Failure> rtrs_client::connect(
    const char* uri, const rtrs_client_options& options) {
  std::unique_ptr<rtrs_client> self{new rtrs_client};
  auto settings = rtrs::library::client_options(uri, options, self->renewal_);
  if (!settings) return tl::unexpected(settings.error());
  auto client = Client::connect(std::move(*settings), {});
  if (!client) return tl::unexpected(client.error());
  const rtrs::SessionLimits& limits = (*client)->limits();
  if ((limits.features & rtrs::library::kFeatureCalls) == 0) {
    return tl::unexpected(Failure{EPROTONOSUPPORT,
                                  "the server speaks RTRS, but it is none of "
                                  "librtrs: name one that rtrs_listen() made"});
  }
  self->client_ = std::move(*client);
  self->renewal_.expect(limits);
  self->slots_ = std::make_unique<CallSlots>(limits.queue_depth);
  self->call_timeout_ = std::chrono::milliseconds{options.call_timeout_ms};
  return self;
}

int rtrs_client::run(CallPlan plan, unsigned flags, std::size_t* answer_length) {
  if (Submissions::on_its_thread()) return EDEADLK;
  Deadline deadline{call_timeout_, gate_};
  const auto late = [&] { return Deadline::passed(&deadline) || !client_->alive(); };
  const auto taken = plan.no_wait ? slots_->try_take() : slots_->take(late);
  if (!taken) return plan.no_wait ? EAGAIN : client_->alive() ? deadline.error() : EIO;
  std::tie(plan.slot, plan.generation, plan.number) =
      std::tie(taken->slot, taken->generation, taken->number);
  plan.max_io_size = client_->limits().max_io_size;
  plan.no_path_is_eio = (flags & RTRS_CONTROL) != 0;
  CallOperation call{plan};
  const rtrs::Interrupt interrupt{&Deadline::passed, &deadline};
  int error =
      plan.no_path_is_eio ? client_->run_control(call, interrupt) : client_->run(call, interrupt);
  slots_->give_back(plan.slot);
  if (error == EINTR) error = deadline.error();
  if (error == EIO && call.in_doubt() && !client_->alive()) error = ENOTRECOVERABLE;
  if (answer_length != nullptr) *answer_length = error == 0 ? call.answer_length() : 0;
  return error;
}

/// Created when it is needed first: a client that only waits has no thread for that.
Submissions* rtrs_client::submissions() {
  if (Submissions* ready = ready_.load(std::memory_order_acquire)) return ready;
  const std::lock_guard lock{mutex_};
  if (!submissions_) {
    if (gate_.is_closed()) return nullptr;
    try {
      const rtrs::library::NoSignals no_signals;
      submissions_ = std::make_unique<Submissions>(*client_, *slots_, gate_);
    } catch (const std::exception&) {
      return nullptr;
    }
    ready_.store(submissions_.get(), std::memory_order_release);
  }
  return submissions_.get();
}

int rtrs_client::submit(rtrs_operation& operation, CallPlan plan) {
  const bool on_control = (operation.flags & RTRS_CONTROL) != 0;
  Submissions* const submissions = this->submissions();
  if (submissions == nullptr) return gate_.is_closed() ? ECANCELED : EAGAIN;
  const bool wait = !plan.no_wait && !Submissions::on_its_thread();
  const auto over = [this] { return gate_.is_closed() || !client_->alive(); };
  const auto taken = wait ? slots_->take(over) : slots_->try_take();
  if (!taken) return !wait ? EAGAIN : gate_.is_closed() ? ECANCELED : EIO;
  std::tie(plan.slot, plan.generation, plan.number) =
      std::tie(taken->slot, taken->generation, taken->number);
  plan.max_io_size = client_->limits().max_io_size;
  plan.no_path_is_eio = on_control;
  return on_control ? submissions->submit_control(operation, plan)
                    : submissions->submit(operation, plan);
}

int rtrs_client::cancel(rtrs_operation& operation) {
  Submissions* const ready = ready_.load(std::memory_order_acquire);
  return ready != nullptr ? ready->cancel(operation) : ENOENT;
}

int rtrs_client::descriptor() {
  Submissions* const submissions = this->submissions();
  return submissions != nullptr ? submissions->descriptor() : -1;
}

int rtrs_client::next(rtrs_operation** operations, int count) {
  Submissions* const ready = ready_.load(std::memory_order_acquire);
  if (ready != nullptr) return ready->next(operations, count);
  return gate_.is_closed() ? -1 : 0;
}

void rtrs_client::shut_down() {
  gate_.close();
  const std::lock_guard lock{mutex_};  // submissions that are being created see the gate closed
  if (submissions_) submissions_->end_all();
}

namespace rtrs::library {
namespace {

/// Asks the server nothing.
class Nothing final : public Operation {
 public:
  explicit Nothing(int error) : error_{error} {}
  void start(ClientLane& /*lane*/) override { finish(error_); }
  void cancel(ClientLane& /*lane*/) override {}

 private:
  int error_;
};

}  // namespace

/// Calls that are under way were cut for the first server.
std::unique_ptr<Operation> Renewal::reopen(const SessionLimits& limits) {
  const bool fits =
      (limits.features & kFeatureCalls) != 0 && limits.max_io_size >= max_io_size_.load();
  return std::make_unique<Nothing>(fits ? 0 : ESTALE);
}

int Renewal::reopened(Operation& operation) { return operation.error(); }

}  // namespace rtrs::library
