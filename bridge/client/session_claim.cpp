// SPDX-License-Identifier: BSD-3-Clause
// Claims the writer's reservation for a device that was opened without one.
#include <cerrno>
#include <utility>

#include "bridge/client/interruptible_wait.hpp"
#include "bridge/client/questions.hpp"
#include "bridge/client/remote_device.hpp"
#include "bridge/protocol/printable.hpp"

namespace rnbd {
namespace {

std::string refusal_of(const std::string& device, int error, const wire::WhoAnswer& reason) {
  const std::string what =
      "the server does not let " + in_quotes(device) + " be changed from here: ";
  if (reason.refused) return what + on_one_line(reason.text);
  switch (error) {
    case EPERM:
      return what + "another client writes to it; connect anew when that one has left" +
             in_brackets(on_one_line(reason.text));
    case ESTALE:
      return what + "another client may have written since it was opened; connect anew";
    case EAGAIN:
      return what + "something hangs that this takes, as the server's log says; try again later";
    default:
      return what + describe_error(error);
  }
}

/// The server's directory knows more about it.
bool has_reason(int error) { return error == EPERM || error == EACCES; }

}  // namespace

/// Asks the server.
int RemoteDevice::claim(const Interrupt& interrupt) {
  if (int error = session_->claim(*mapping_, geometry_.witness, interrupt)) return error;
  may_change_ = true;
  return 0;
}

class RemoteDevice::AsyncClaim final : public Claim {
 public:
  explicit AsyncClaim(RemoteDevice& device)
      : device_{device}, seen_{device.geometry_.witness}, question_{device.handle(), seen_} {}

  rtrs::Operation& operation() override { return question_.operation(); }
  std::optional<int> end(int error) override {
    const auto result =
        device_.session_->end_claim(*device_.mapping_, seen_, asked_in, question_.answer(error));
    if (result == 0) device_.may_change_ = true;
    return result;
  }

  std::uint64_t asked_in = 0;  ///< era

 private:
  RemoteDevice& device_;
  const Witness seen_;
  ClaimQuestion question_;
};

Disk::BegunClaim RemoteDevice::begin_claim(std::function<void()> again) {
  auto claim = std::make_unique<AsyncClaim>(*this);
  BegunClaim begun =
      session_->begin_claim(*mapping_, geometry_.witness, std::move(again), claim->asked_in);
  if (begun.state == BegunClaim::State::asking) begun.claim = std::move(claim);
  if (begun.state == BegunClaim::State::granted) may_change_ = true;
  return begun;
}

const char* RemoteDevice::access_in_words() const {
  if (!read_only()) return "rw";
  return in_use() ? "ro, another client writes to it" : "ro";
}

/// For a user who knows the content as it was at `seen`. Other users of the device may write to it
/// then, too, if they know as much.
int Session::claim(Mapping& mapping, const Witness& seen, const Interrupt& interrupt) {
  using Answer = Mapping::Claim;
  Answer answer{};
  const auto has_answer = [&] { return (answer = mapping.claim(seen)) != Answer::wait; };
  std::unique_lock lock{mutex_};
  if (!interruptible_wait(changed_, lock, interrupt, has_answer)) return EINTR;
  if (answer == Answer::covered) return 0;
  if (answer == Answer::stale) return refuse_claim(mapping, ESTALE);
  mapping.claiming = true;
  for (;;) {
    const std::uint64_t asked_in = table_.era().number;
    lock.unlock();
    const auto told = ask_claim(*client_, mapping.handle, seen, interrupt);
    const bool final = told.error == EINTR || !alive();
    const wire::WhoAnswer reason = reason_for(told.error, mapping.name, interrupt);
    lock.lock();
    if (table_.is_past(asked_in) && !final) continue;  // the session before may have it
    const int error = settle_claim(mapping, seen, told, reason);
    claim_ended(mapping, lock);
    return error;
  }
}

/// With the lock held.
int Session::settle_claim(Mapping& mapping, const Witness& seen, const DeviceAnswer& answer,
                          const wire::WhoAnswer& reason) {
  if (answer.error != 0) return refuse_claim(mapping, answer.error, reason);
  mapping.claim_granted(seen, *answer.info);
  mapping.claim_refusal.clear();
  return 0;
}

/// The next user may ask. `lock` is released.
void Session::claim_ended(Mapping& mapping, std::unique_lock<std::mutex>& lock) {
  mapping.claiming = false;
  const auto waiters = std::exchange(mapping.claim_waiters, {});
  lock.unlock();
  changed_.notify_all();
  for (const auto& again : waiters) again();
}

Disk::BegunClaim Session::begin_claim(Mapping& mapping, const Witness& seen,
                                      std::function<void()> again, std::uint64_t& asked_in) {
  using State = Disk::BegunClaim::State;
  const std::lock_guard lock{mutex_};
  switch (mapping.claim(seen)) {
    case Mapping::Claim::wait:
      mapping.claim_waiters.push_back(std::move(again));
      return {State::joined};
    case Mapping::Claim::covered:
      return {State::granted};
    case Mapping::Claim::stale:
      return {State::refused, {}, refuse_claim(mapping, ESTALE)};
    case Mapping::Claim::ask:
      break;
  }
  mapping.claiming = true;
  asked_in = table_.era().number;
  return {State::asking};
}

/// A thread that may wait asks again for what takes a second question: the reason, or a new
/// session.
std::optional<int> Session::end_claim(Mapping& mapping, const Witness& seen, std::uint64_t asked_in,
                                      const DeviceAnswer& answer) {
  const bool final = answer.error == EINTR || !alive();
  std::unique_lock lock{mutex_};
  const bool again = !final && (table_.is_past(asked_in) || has_reason(answer.error));
  const std::optional<int> result =
      again ? std::nullopt : std::optional{settle_claim(mapping, seen, answer, {})};
  claim_ended(mapping, lock);
  return result;
}

/// An errno has no room for the reason of a refusal, so the server is asked for it.
wire::WhoAnswer Session::reason_for(int error, const std::string& device,
                                    const Interrupt& interrupt) {
  if (!has_reason(error)) return {};
  return directory().who(device, interrupt);
}

/// With the session's lock held. Reports a refusal once, and not for every write.
int Session::refuse_claim(Mapping& mapping, int error, const wire::WhoAnswer& reason) {
  if (error == EINTR || error == EIO) return error;
  std::string refusal = refusal_of(mapping.name, error, reason);
  if (mapping.claim_refusal != refusal) say(rtrs::LogLevel::error, refusal);
  mapping.claim_refusal = std::move(refusal);
  return error;
}

}  // namespace rnbd
