// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/transport/client/background_jobs.hpp"

#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <utility>

#include "rdma/transport/clock.hpp"

namespace rtrs {

void BackgroundJobs::start(std::uint32_t features) {
  features_ = features;
  if (handler_ != nullptr) ask_later();
}

void BackgroundJobs::ask_later() {
  const auto ask = [this] {
    if (lanes_.is_shut_down()) return;
    cancel_slow();
    if (lanes_.control().attached()) run();
    ask_later();
  };
  next_.set(kBackgroundPause, ask, kBackgroundPause / 2);  // with a heartbeat
}

void BackgroundJobs::run() {
  if (lanes_.is_shut_down() || job_ || handler_ == nullptr || !lanes_.has_control()) return;
  job_ = handler_->background_job();
  if (!job_) return;
  since_ = now();
  job_->on_finish(
      [](void* context) {
        auto& self = *static_cast<BackgroundJobs*>(context);
        boost::asio::post(self.reactor_.io(), [&self] { self.ended(); });
      },
      this);
  job_->start(lanes_.control());
  lanes_.flush_control();
}

void BackgroundJobs::ended() {
  const auto job = std::move(job_);
  handler_->background_job_ended(*job);
  if (job->error() != EIO) run();  // otherwise later: it may be over at once again
}

/// The permit of a job is in use until the server answers, and one is left for those who open
/// things. A server without the extension would let these wait, too: there it is waited for.
void BackgroundJobs::cancel_slow() {
  if (!job_ || job_->finished() || now() - since_ < kBackgroundPause) return;
  const LaneSlots& permits = lanes_.control().permits();
  const bool spare = permits.in_use() + 1 < permits.count();
  if (!spare || (features_ & wire::kFeatureExactlyOnce) == 0) return;
  job_->cancel(lanes_.control());
  const auto job = std::move(job_);
  handler_->background_job_ended(*job);
}

/// Storage that hangs at a server without the extension delays whoever opens another device.
void HeldRequests::look_at_opens(Instant now) {
  if (!lanes_.opens_unresolved() && opens_wait_.rearm()) {
    notices_.report({.kind = Notice::Kind::opens_go_on}, now);
  }
  const Duration patience = options_.heartbeat_interval * options_.heartbeat_misses;
  if (opens_wait_.is_due(lanes_.opens_wait(), now, patience)) {
    notices_.report({.kind = Notice::Kind::opens_wait}, now);
  }
}

/// Writes wait, too, for an older write of their device that has not ended.
void HeldRequests::look_at_writes(Instant now) {
  constexpr Duration kPatience = std::chrono::seconds{5};
  const bool held = lanes_.writes_wait();
  if (!held) writes_wait_.rearm();
  if (writes_wait_.is_due(held, now, kPatience)) {
    notices_.report({.kind = Notice::Kind::writes_wait}, now);
  }
}

}  // namespace rtrs
