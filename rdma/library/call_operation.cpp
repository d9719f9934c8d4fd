// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/call_operation.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

namespace rtrs::library {
namespace {

/// A transport has had it: a server may have carried it out, however it ended.
bool was_sent(const Request& request) { return request.ticket != 0; }

}  // namespace

bool OwnedAnswer::make(std::uint64_t length) {
  clear();
  if (length == 0) return true;
  memory_.iov_base = large_allocate(length);
  memory_.iov_len = memory_.iov_base != nullptr ? length : 0;
  return memory_.iov_base != nullptr;
}

CallOperation::CallOperation(const CallPlan& plan, Start* started)
    : plan_{plan}, started_{started}, carriage_{carriage_of(plan)} {}

/// Without an answer the data ride in the call.
CallOperation::Carriage CallOperation::carriage_of(const CallPlan& plan) {
  const std::uint64_t out = plan.out.size();
  if (plan.room == 0 && out <= plan.max_io_size) return Carriage::in_call;
  return out <= kMaxMessage - plan.message.size() ? Carriage::behind : Carriage::staged;
}

CallOperation::~CallOperation() {
  for (unsigned i = 0; i < kWindow; ++i) {
    if ((busy_ & (1U << i)) != 0) fragments_[i].fragment.~Fragment();
  }
}

void CallOperation::start(ClientLane& lane) {
  const bool full = lane.permits().in_use() >= lane.permits().count();
  refused_ = plan_.no_wait && (full || !lane.attached());
  // A thread that waits without the lane may free the operation as soon as it has ended.
  Start* const started = started_;
  if (refused_) {
    finish(EAGAIN);
  } else {
    go_on(lane);
  }
  if (started != nullptr) *started = {finished(), refused_};
}

void CallOperation::cancel(ClientLane& lane) {
  for (unsigned i = 0; i < kWindow; ++i) {
    if ((busy_ & (1U << i)) == 0) continue;
    lane.cancel(fragments_[i].fragment.request);
    free(fragments_[i].fragment);
  }
}

void CallOperation::go_on(ClientLane& lane) {
  if (going_on_) return;  // a request ended while it was submitted; the loop below goes on
  going_on_ = true;
  do {
    while (busy_ != (1U << kWindow) - 1 && step(lane)) {
    }
    const bool again = !call_sent_ || plan_.repeatable || plan_.resend;
    if (busy_ != 0 || break_ != Break::lost || !again) break;
    start_over();
  } while (true);
  going_on_ = false;
  // Last, for the waiter may free the operation as soon as it is told.
  if (busy_ == 0) finish(outcome());
}

/// Submits the next request. False: there is none, or not yet.
bool CallOperation::step(ClientLane& lane) {
  if (error_ != 0 || break_ != Break::none) return false;
  switch (stage_) {
    case Stage::sending:
      if (carriage_ == Carriage::staged && next_out_ < plan_.out.size())
        submit_piece(lane);
      else
        submit_call(lane, Stage::called);
      return true;
    case Stage::overtaken:
      if (busy_ != 0) return false;
      submit_call(lane, Stage::called_again);
      return true;
    case Stage::answered:
      if (next_in_ < answer_length_) {
        submit_fetch(lane);
        return true;
      }
      if (is_all_here() || busy_ != 0) return false;
      stage_ = Stage::forgotten;
      submit(lane, take(CallKind::forget), {}, 0);
      return true;
    case Stage::called:
    case Stage::called_again:
    case Stage::forgotten:
      return false;
  }
  return false;
}

/// The server keeps no part of the answer any more that is not here.
bool CallOperation::is_all_here() const {
  return stage_ == Stage::forgotten ||
         (stage_ == Stage::answered && answer_length_ <= kDirectAnswer);
}

int CallOperation::outcome() const {
  if (error_ != 0 || break_ == Break::none) return error_;
  if (is_all_here()) return 0;
  if (break_ == Break::no_path && (plan_.repeatable || !call_sent_)) return EHOSTUNREACH;
  return ENOTRECOVERABLE;
}

/// The server knows nothing of earlier messages.
void CallOperation::start_over() {
  next_out_ = next_in_ = 0;
  stage_ = Stage::sending;
  break_ = Break::none;
}

// ---- Requests -----------------------------------------------------------------------------------

CallOperation::Fragment& CallOperation::take(CallKind kind) {
  const auto index = static_cast<unsigned>(std::countr_one(busy_));
  busy_ |= 1U << index;
  // Not value-initialised: most of it is written by submit().
  Fragment& fragment = *::new (&fragments_[index].fragment) Fragment;
  fragment.owner = this;
  fragment.index = index;
  fragment.message.header.kind = kind;
  fragment.message.header.slot = plan_.slot;
  fragment.message.header.generation = plan_.generation;
  fragment.message.header.number = plan_.number;
  fragment.message.header.out_length = plan_.out.size();
  fragment.message.header.piece_size = plan_.max_io_size;
  fragment.request.done = &CallOperation::on_done;
  fragment.request.renew = &CallOperation::on_renew;
  fragment.request.context = &fragment;
  return fragment;
}

void CallOperation::free(Fragment& fragment) {
  busy_ &= ~(1U << fragment.index);
  fragment.~Fragment();
}

/// False: no memory.
bool CallOperation::give_data(Fragment& fragment, std::uint64_t offset, std::size_t length) {
  if (const auto part = plan_.out.contiguous(offset, length)) {
    fragment.request.write_data = *part;
    return true;
  }
  fragment.bounce.reset(new (std::nothrow) std::byte[length]);
  if (!fragment.bounce) return false;
  plan_.out.gather(offset, {fragment.bounce.get(), length});
  fragment.request.write_data = {fragment.bounce.get(), length};
  return true;
}

/// False: no memory.
bool CallOperation::give_room(Fragment& fragment, std::uint64_t offset, std::size_t length) {
  fragment.request.is_read = true;
  fragment.offset = offset;
  if (const auto part = plan_.in.contiguous(offset, length)) {
    fragment.request.read_data = *part;
    return true;
  }
  fragment.bounce.reset(new (std::nothrow) std::byte[length]);
  if (!fragment.bounce) return false;
  fragment.request.read_data = {fragment.bounce.get(), length};
  return true;
}

void CallOperation::no_memory(Fragment& fragment) {
  if (error_ == 0) error_ = ENOMEM;
  free(fragment);
}

void CallOperation::submit(ClientLane& lane, Fragment& fragment, ConstBytes message,
                           std::size_t inline_length) {
  static_assert(offsetof(Message, rest) == sizeof(CallHeader));
  fragment.message.header.message_length = static_cast<std::uint16_t>(message.size());
  fragment.message.header.inline_length = static_cast<std::uint16_t>(inline_length);
  if (!message.empty()) std::memcpy(fragment.message.rest.data(), message.data(), message.size());
  if (inline_length != 0) {
    plan_.out.gather(0, MutableBytes{fragment.message.rest}.subspan(message.size(), inline_length));
  }
  fragment.request.message = {reinterpret_cast<const std::byte*>(&fragment.message),
                              sizeof(CallHeader) + message.size() + inline_length};
  lane.submit(fragment.request);
}

void CallOperation::submit_piece(ClientLane& lane) {
  Fragment& fragment = take(CallKind::piece);
  const auto length = std::min<std::uint64_t>(plan_.max_io_size, plan_.out.size() - next_out_);
  fragment.message.header.place = next_out_;
  if (!give_data(fragment, next_out_, length)) return no_memory(fragment);
  next_out_ += length;
  submit(lane, fragment, {}, 0);
}

void CallOperation::submit_call(ClientLane& lane, Stage next) {
  stage_ = next;
  Fragment& fragment = take(CallKind::call);
  std::uint8_t flags = 0;
  if (plan_.repeatable) flags |= kRepeatable;
  if (plan_.resend) flags |= kResend;
  if (call_sent_) flags |= kMaybeDone;
  if (carriage_ == Carriage::staged) flags |= kStaged;
  fragment.message.header.flags = flags;
  fragment.message.header.place = plan_.room;
  if (carriage_ != Carriage::in_call) {
    fragment.request.is_read = true;
    fragment.request.read_data = MutableBytes{reply_}.first(reply_size(plan_.room));
  } else if (!give_data(fragment, 0, plan_.out.size())) {
    return no_memory(fragment);
  }
  submit(lane, fragment, plan_.message, carriage_ == Carriage::behind ? plan_.out.size() : 0);
}

void CallOperation::submit_fetch(ClientLane& lane) {
  Fragment& fragment = take(CallKind::fetch);
  const auto length = std::min<std::uint64_t>(plan_.max_io_size, answer_length_ - next_in_);
  fragment.message.header.place = next_in_;
  if (!give_room(fragment, next_in_, length)) return no_memory(fragment);
  next_in_ += length;
  submit(lane, fragment, {}, 0);
}

// ---- Ends ---------------------------------------------------------------------------------------

void CallOperation::on_done(ClientLane& lane, Request& request) {
  Fragment& fragment = *static_cast<Fragment*>(request.context);
  CallOperation& self = *fragment.owner;
  if (request.error != 0 || fragment.voided) {
    self.failed(fragment);
  } else {
    self.ended(fragment);
  }
  self.free(fragment);
  self.go_on(lane);
}

void CallOperation::ended(Fragment& fragment) {
  const Request& request = fragment.request;
  if (fragment.bounce && request.is_read) {
    plan_.in.scatter(fragment.offset, {fragment.bounce.get(), request.read_data.size()});
  }
  if (fragment.message.header.kind != CallKind::call) return;
  stage_ = Stage::answered;
  call_sent_ = true;
  if (request.is_read) take_reply();
}

/// Its length, and as much of the answer as fits.
void CallOperation::take_reply() {
  answer_length_ = wire::copy_of<wire::le64>(ConstBytes{reply_}.first(kReplyHeader));
  if (answer_length_ > plan_.room) {
    error_ = EPROTO;
    return;
  }
  if (plan_.owned != nullptr) {
    if (!plan_.owned->make(answer_length_)) {
      error_ = ENOMEM;
      return;
    }
    plan_.in = plan_.owned->list();
  }
  const auto here = std::min<std::uint64_t>(answer_length_, kDirectAnswer);
  plan_.in.scatter(0, ConstBytes{reply_}.subspan(kReplyHeader, here));
  next_in_ = here;
}

void CallOperation::failed(const Fragment& fragment) {
  const Request& request = fragment.request;
  const CallKind kind = fragment.message.header.kind;
  if (kind == CallKind::forget) return;  // all is here
  if (fragment.voided) {
    break_ = std::max(break_, Break::lost);
  } else if (request.error == kIncomplete && kind == CallKind::call && stage_ == Stage::called) {
    stage_ = Stage::overtaken;
  } else if (request.error == kNoPathError || (plan_.no_path_is_eio && request.error == EIO)) {
    break_ = Break::no_path;
    if (kind == CallKind::call && was_sent(request)) call_sent_ = true;
  } else if (error_ == 0) {
    in_doubt_ = kind != CallKind::piece && was_sent(request);
    error_ = request.error;
  }
}

/// The server has forgotten the session. Its part of a call is gone with it; nobody knows whether
/// the messages sent before were carried out.
void CallOperation::on_renew(Request& request) {
  Fragment& fragment = *static_cast<Fragment*>(request.context);
  CallOperation& self = *fragment.owner;
  const bool is_call = fragment.message.header.kind == CallKind::call;
  if (is_call && was_sent(request)) self.call_sent_ = true;
  const bool is_whole = is_call && self.carriage_ != Carriage::staged && !was_sent(request);
  if (is_whole) return;
  fragment.voided = true;
  fragment.message.header.flags |= kVoid;
}

}  // namespace rtrs::library
