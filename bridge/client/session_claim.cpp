// SPDX-License-Identifier: BSD-3-Clause
// Claims the writer's reservation for a device that was opened without one.
#include <cerrno>

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

}  // namespace

/// Asks the server.
int RemoteDevice::claim(const Interrupt& interrupt) {
  if (int error = session_->claim(*mapping_, geometry_.witness, interrupt)) return error;
  may_change_ = true;
  return 0;
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
    const auto [error, told] = ask_claim(*client_, mapping.handle, seen, interrupt);
    const bool final = error == EINTR || !alive();
    const wire::WhoAnswer reason = reason_for(error, mapping.name, interrupt);
    lock.lock();
    if (table_.is_past(asked_in) && !final) continue;  // the session before may have it
    mapping.claiming = false;
    changed_.notify_all();
    if (error != 0) return refuse_claim(mapping, error, reason);
    mapping.claim_granted(seen, *told);
    mapping.claim_refusal.clear();
    return 0;
  }
}

/// An errno has no room for the reason of a refusal, so the server is asked for it.
wire::WhoAnswer Session::reason_for(int error, const std::string& device,
                                    const Interrupt& interrupt) {
  if (error != EPERM && error != EACCES) return {};
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
