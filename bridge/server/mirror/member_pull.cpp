// SPDX-License-Identifier: BSD-3-Clause
// PULL: a member of a mirror group copies a range from another one, piece by piece.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "bridge/protocol/mirror.hpp"
#include "bridge/server/answer.hpp"
#include "bridge/server/attempt.hpp"
#include "bridge/server/geometry.hpp"
#include "bridge/server/io_requests.hpp"
#include "bridge/server/mirror/member_messages.hpp"
#include "bridge/server/services.hpp"
#include "bridge/server/session_facts.hpp"
#include "rdma/core/server/path.hpp"
#include "rdma/core/server/session.hpp"

namespace rnbd {

using mirror::MemberDevice;

namespace {

constexpr std::uint64_t kPiece = 1 << 20;  ///< bytes
/// For each export: one at work, and those that wait for it.
constexpr std::ptrdiff_t kMostPulls = 5;
/// For one piece. The client copies by itself what takes longer.
constexpr std::chrono::seconds kPatience{5};
/// Between two looks whether a PULL is still wanted.
constexpr std::chrono::milliseconds kLook{50};
/// A client without a path for so long has lost this member.
constexpr unsigned kLooksWithoutPath = std::chrono::seconds{1} / kLook;

bool has_path(const rtrs::ServerSession& session) {
  return std::ranges::any_of(session.paths(), [](const rtrs::ServerPath* path) {
    return path->state() == rtrs::ServerPathState::connected && !path->is_memory();
  });
}

/// The memory for a piece, and the way back of the thread that reads into it. That thread may come
/// late, when the PULL, its session and the reactor have ended.
class PulledPiece {
 public:
  PulledPiece(std::uint64_t size, std::function<void(int error)> then)
      : data_(size), then_{std::move(then)} {}

  std::vector<std::byte>& data() { return data_; }
  bool is_wanted() const { return wanted_; }
  void drop() {
    const std::lock_guard lock{mutex_};
    wanted_ = false;
    then_ = nullptr;
  }
  void arrive(int error) {
    const std::lock_guard lock{mutex_};
    if (then_) then_(error);
  }

 private:
  std::vector<std::byte> data_;
  std::atomic<bool> wanted_{true};
  std::mutex mutex_;
  std::function<void(int error)> then_;  ///< guarded by mutex_; none: it was dropped
};

}  // namespace

/// The request counts as running at the backend until it is answered, so that a claim of another
/// client waits for it. That is no longer than a write takes: before the write, a PULL ends as soon
/// as its client is not served any more.
struct MemberMessages::Pull {
  enum class Step : std::uint8_t { waiting, reading, writing };

  MemberMessages& messages;
  Device& device;
  MemberDevice& part;
  const rtrs::ServerSession* session = nullptr;
  IoRequests::Ending complete;
  mirror::PullSource source;
  std::uint64_t end = 0;     ///< bytes
  std::uint64_t number = 0;  ///< at the member
  Step step = Step::waiting;
  std::shared_ptr<PulledPiece> piece{};  ///< that is read, or written
  std::uint64_t asked_at = 0;            ///< of the piece, by Services::now()
  unsigned without_path = 0;             ///< looks in a row
  BackendRequest write{};
};

/// Without memory the sources stay until the server ends, which is better than to end it now.
MemberMessages::~MemberMessages() {
  if (reader_ == nullptr || is_used_ == nullptr) return;
  attempt([&] { reader_->forget(session_.facts.uuid); });
}

void MemberMessages::pull(rtrs::ServerRequest& request) {
  const auto message = wire::decode<wire::MirrorPull>(request.message, wire::kMirrorPull);
  if (!message) return finish(request, EINVAL);
  Device* const device = session_.devices.usable(message->device_id);
  if (device == nullptr) return finish(request, ENOTCONN);
  auto* const part = part_of<MemberDevice>(device->annexes);
  if (part == nullptr || !part->is_served()) return finish(request, ESTALE);
  if (reader_ == nullptr) return finish(request, EOPNOTSUPP);
  auto uri = wire::decode_pull_uri(request.data);
  IoPlan plan;
  plan.operation = BackendOperation::write;
  plan.copy = true;
  plan.offset = message->offset;
  plan.length = message->length;
  const bool fits = part->seat().regions_of(plan.offset, plan.length).has_value() &&
                    fit_range(device->geometry(), plan.offset, plan.length);
  if (!uri || !fits) return finish(request, EINVAL);
  const auto of_export =
      std::ranges::count_if(pulls_, [&](const PullPtr& each) { return &each->part == part; });
  if (of_export >= kMostPulls) return finish(request, EAGAIN);
  mirror::PullSource source{*std::move(uri), part->seat().group(), part->seat().claimant(),
                            message->disk,   plan.offset,          session_.facts.uuid};
  const PullPtr pull{new Pull{.messages = *this,
                              .device = *device,
                              .part = *part,
                              .session = request.session,
                              .complete = session_.io.begin(request, *device, plan),
                              .source = std::move(source),
                              .end = plan.offset + plan.length,
                              .number = part->seat().begin_pull()}};
  if (is_used_ == nullptr) is_used_ = std::make_shared<bool>(true);
  pulls_.push_back(pull);
  if (pulls_.size() == 1) watch_pulls();
  begin_next(*part);
}

/// One at a time.
void MemberMessages::begin_next(const MemberDevice& part) {
  const auto next =
      std::ranges::find_if(pulls_, [&](const PullPtr& each) { return &each->part == &part; });
  if (next != pulls_.end() && (*next)->step == Pull::Step::waiting) pull_next(PullPtr{*next});
}

void MemberMessages::pull_next(const PullPtr& pull) {
  const std::uint64_t left = pull->end - pull->source.offset;
  if (left == 0) return end_pull(pull, 0);
  pull->step = Pull::Step::reading;
  pull->asked_at = session_.services.now();
  // The services outlive the PULL, and it drops the piece with its answer.
  const auto arrived = [&services = session_.services, reactor = reactor(), pull](int error) {
    services.later(reactor, [pull, piece = pull->piece, error] {
      if (piece->is_wanted()) pull->messages.write_pulled(pull, error);
    });
  };
  const auto piece = std::make_shared<PulledPiece>(std::min(left, kPiece), arrived);
  pull->piece = piece;
  pull->source.wanted = [piece] { return piece->is_wanted(); };
  reader_->read(pull->source, piece->data(), [piece](int error) { piece->arrive(error); });
}

void MemberMessages::write_pulled(const PullPtr& pull, int error) {
  if (!pull->part.is_served() || !pull->part.seat().awaits_pull(pull->number))
    return end_pull(pull, ESTALE);
  if (error != 0) return end_pull(pull, EOPNOTSUPP);  // no fault of this storage
  const std::vector<std::byte>& data = pull->piece->data();
  BackendRequest& write = pull->write;
  const bool zeroes = pull->device.geometry().can_write_zeroes && mirror::only_zeroes(data);
  write.operation = zeroes ? BackendOperation::write_zeroes : BackendOperation::write;
  write.copy = true;
  write.offset = pull->source.offset;
  write.length = data.size();
  write.data = zeroes ? nullptr : pull->piece->data().data();
  write.context = pull.get();
  write.done = [](BackendRequest& written, int failure) {
    auto& its = *static_cast<Pull*>(written.context);
    const auto same = [&](const PullPtr& each) { return each.get() == &its; };
    const PullPtr kept = *std::ranges::find_if(its.messages.pulls_, same);
    its.messages.written(kept, failure);
  };
  pull->step = Pull::Step::writing;
  pull->part.submit(write);
}

void MemberMessages::written(const PullPtr& pull, int error) {
  pull->source.offset += pull->write.length;
  if (error == 0 && !pull->part.is_served()) error = ESTALE;
  error != 0 ? end_pull(pull, error) : pull_next(pull);
}

/// The answer may end the session, so nothing of it is touched afterwards.
void MemberMessages::end_pull(const PullPtr& pull, int error) {
  if (pull->piece != nullptr) pull->piece->drop();
  pull->part.seat().end_pull(pull->number);
  std::erase(pulls_, pull);
  if (pulls_.empty()) watch_.reset();
  begin_next(pull->part);
  pull->complete(error);
}

/// 0: it goes on.
int MemberMessages::why_over(Pull& pull) const {
  if (!pull.part.is_served() || pull.device.closing) return ESTALE;
  const rtrs::ServerSession* const session = pull.session;
  if (session != nullptr) {
    pull.without_path = has_path(*session) ? 0 : pull.without_path + 1;
    if (session->over() || pull.without_path > kLooksWithoutPath) return ESTALE;
  }
  const std::chrono::nanoseconds took{session_.services.now() - pull.asked_at};
  return pull.step == Pull::Step::reading && took > kPatience ? EOPNOTSUPP : 0;
}

void MemberMessages::watch_pulls() {
  watch_ =
      session_.services.after(reactor(), kLook, [this, is_used = std::weak_ptr<bool>{is_used_}] {
        if (!is_used.expired()) look_at_pulls();
      });
}

/// A source that does not answer in time is not asked again for those that wait behind.
void MemberMessages::look_at_pulls() {
  const std::weak_ptr<bool> is_used = is_used_;
  if (!pulls_.empty()) watch_pulls();
  const MemberDevice* late_part = nullptr;
  std::string late_uri;
  for (const PullPtr& pull : std::deque<PullPtr>{pulls_}) {
    if (pull->step == Pull::Step::writing) continue;
    int error = why_over(*pull);
    if (error == 0 && &pull->part == late_part && pull->source.uri == late_uri) error = EOPNOTSUPP;
    if (error == 0) continue;
    if (error == EOPNOTSUPP) late_part = &pull->part, late_uri = pull->source.uri;
    end_pull(pull, error);
    if (is_used.expired()) return;
  }
}

}  // namespace rnbd
