// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/server_session.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "rdma/library/server_handle.hpp"
#include "rdma/transport/reactor.hpp"

using namespace rtrs::library;
namespace wire = rtrs::wire;
using rtrs::ServerRequest;
using rtrs::wire::ConstBytes;
using rtrs::wire::MutableBytes;
using State = rtrs_request::State;

namespace {

/// Puts the answer, or as much of it as fits, into the reply to a call.
void fill(const ServerRequest& request, ConstBytes answer) {
  if (!request.is_read || request.data.size() < kReplyHeader) return;  // or of one that cheats
  const wire::le64 length = answer.size();
  std::memcpy(request.data.data(), &length, sizeof(length));
  const MutableBytes room = request.data.subspan(sizeof(length));
  const std::size_t here = std::min(room.size(), answer.size());
  if (here != 0 && room.data() != answer.data()) std::memmove(room.data(), answer.data(), here);
  // The whole room is sent.
  std::memset(room.data() + here, 0, room.size() - here);
}

}  // namespace

rtrs_session::rtrs_session(rtrs_server& server, rtrs::ServerSession& session)
    : server_{server}, session_{session}, slots_(server.queue_depth()) {
  std::ranges::copy(rtrs::uuid_of(session), client_id_);
}

bool rtrs_session::is_client_of_ours() const {
  return (rtrs::features_of(session_) & kFeatureCalls) != 0;
}

// In all that follows: the session may be gone when the last request has been finished, so nothing
// is touched behind that.

void rtrs_session::on_request(ServerRequest& request) {
  const auto message = decode_call(request.message);
  if (!message || !is_client_of_ours()) return request.finish(EBADMSG);
  if (message->has(kVoid)) return request.finish(ECANCELED);
  const CallHeader& header = message->header;
  if (header.slot >= slots_.size()) return request.finish(EBADMSG);
  Slot* const slot = find(header);
  if (slot == nullptr) return request.finish(ECANCELED);
  rtrs_request& call = *slot->call;
  switch (header.kind) {
    case CallKind::call:
      return on_call(call, request, *message);
    case CallKind::piece:
      return on_piece(call, request, *message);
    case CallKind::fetch:
      return on_fetch(call, request, *message);
    case CallKind::forget:
      return on_forget(call, request);
  }
}

/// Null: the message belongs to a call before the slot's newest one, of which its client knows the
/// end.
rtrs_session::Slot* rtrs_session::find(const CallHeader& header) {
  Slot& slot = slots_[header.slot];
  const auto ahead = static_cast<std::int32_t>(header.generation - slot.generation);
  if (slot.known && ahead < 0) return nullptr;
  if (!slot.known || ahead != 0) renew(slot, header.generation);
  return &slot;
}

rtrs_request& rtrs_session::renew(Slot& slot, std::uint32_t generation) {
  if (slot.call && slot.call->state == State::executing) {
    slot.call->orphan = true;
    orphans_.push_back(std::move(slot.call));
  }
  if (!slot.call) slot.call = std::make_unique<rtrs_request>(*this, server_.budget());
  slot.call->reset();
  slot.known = true;
  slot.generation = generation;
  return *slot.call;
}

void rtrs_session::on_call(rtrs_request& call, ServerRequest& request, const CallMessage& message) {
  if (call.state == State::executing) return call.add_asker(request, message);
  if (call.error != 0) return request.finish(call.error);  // of the call, or of its data
  if (call.state == State::done && call.keeps(call.answer.bytes().size())) {
    fill(request, call.answer.bytes());
    return request.finish(0);
  }
  const bool waits = message.has(kStaged) && !call.gathered.complete();
  if (waits) return request.finish(kIncomplete);
  call.add_asker(request, message);
  execute(call);
}

void rtrs_session::on_piece(rtrs_request& call, ServerRequest& request,
                            const CallMessage& message) {
  if (request.is_read) return request.finish(EBADMSG);
  const bool wanted = call.state == State::idle || call.state == State::gathering;
  if (!wanted) return request.finish(call.error);
  call.state = State::gathering;
  const std::uint64_t length = message.header.out_length;
  int error = call.error;
  if (error == 0 && call.gathered.empty()) {
    error = length > server_.max_request_size()
                ? EMSGSIZE
                : call.gathered.begin(length, message.header.piece_size);
  }
  if (error == 0 && length != call.gathered.bytes().size()) error = EBADMSG;
  if (error == 0) error = add_piece(call, request, message.header.place);
  if (error != 0) refuse(call, error);
  request.finish(error);
}

/// Pieces come in order, so that the next one can be received where it belongs. Errors: EBADMSG.
int rtrs_session::add_piece(rtrs_request& call, ServerRequest& request, std::uint64_t offset) {
  GatheredData& gathered = call.gathered;
  // A copy that comes at the same time would go on writing to a piece that is there.
  const MutableBytes place = gathered.place_elsewhere(offset, request.data.data());
  if (!place.empty()) rtrs::let_go(session_, place);
  if (const int error = gathered.add(offset, request.data)) return error;
  const MutableBytes next = gathered.expect(offset + request.data.size());
  if (!next.empty()) request.expect_next(next);
  return 0;
}

void rtrs_session::let_go(ConstBytes memory) { rtrs::let_go(session_, memory); }

void rtrs_session::on_fetch(rtrs_request& call, ServerRequest& request,
                            const CallMessage& message) {
  // Before its end the answer is another thread's to write.
  const bool ended = call.state == State::done && call.error == 0;
  if (!ended || !request.is_read) return request.finish(EBADMSG);
  const ConstBytes answer = call.answer.bytes();
  const std::uint64_t offset = message.header.place;
  const std::size_t length = request.data.size();
  if (offset > answer.size() || length > answer.size() - offset) return request.finish(EBADMSG);
  if (request.may_send_from_anywhere()) {
    request.source = answer.data() + offset;
    call.lent = true;
  } else {
    std::memcpy(request.data.data(), answer.data() + offset, length);
  }
  request.finish(0);
}

void rtrs_session::on_forget(rtrs_request& call, ServerRequest& request) {
  if (call.state == State::done) {
    call.forget_answer();
    call.error = ECANCELED;
  }
  request.finish(0);
}

// ---- Execution ----------------------------------------------------------------------------------

void rtrs_session::execute(rtrs_request& call) {
  if (const int error = call.prepare(server_.max_request_size())) return refuse(call, error);
  call.state = State::executing;
  server_.execute(call);
}

/// It is not carried out; pieces of it may still come.
void rtrs_session::refuse(rtrs_request& call, int error) {
  const auto askers = call.take_askers();
  call.reset();
  call.error = error;
  call.state = State::gathering;
  askers.finish(error);
}

void rtrs_session::end(rtrs_request& call, int error, ConstBytes answer, void (*release)(void*),
                       void* release_context) {
  int end = call.judge(error, answer.size());
  if (std::this_thread::get_id() == loop_) {
    return conclude(call, end, {answer, release, release_context, /*is_kept=*/false});
  }
  // Elsewhere nothing but the answer is touched.
  if (end == 0) end = keep(call, {answer, release, release_context, false});
  if (end != 0 && release != nullptr) release(release_context);
  boost::asio::post(rtrs::reactor_of(session_)->io(), [this, &call, end] {
    conclude(call, end, {call.answer.bytes(), nullptr, nullptr, /*is_kept=*/true});
  });
}

/// Errors: ENOBUFS.
int rtrs_session::keep(rtrs_request& call, const Answer& answer) {
  if (answer.release != nullptr) {
    call.answer.hold(answer.bytes, answer.release, answer.context);
    return 0;
  }
  try {
    call.answer.copy(answer.bytes);
    return 0;
  } catch (const std::bad_alloc&) {
    return ENOBUFS;
  }
}

void rtrs_session::conclude(rtrs_request& call, int error, const Answer& answer) {
  const auto askers = call.take_askers();
  if (error == 0) {
    askers.for_each([&answer](const ServerRequest& request) { fill(request, answer.bytes); });
  }
  const bool keeps = error == 0 && call.keeps(answer.bytes.size()) && !call.orphan;
  if (!keeps || answer.bytes.size() <= kDirectAnswer) call.give_back_room();
  if (answer.is_kept && !keeps) call.answer.clear();
  if (!answer.is_kept && keeps) error = keep(call, answer);
  const bool unused = !answer.is_kept && (!keeps || error != 0);
  if (unused && answer.release != nullptr) answer.release(answer.context);
  call.error = error;
  call.state = State::done;
  call.gathered.clear();
  if (call.orphan) {
    std::erase_if(orphans_, [&](const auto& orphan) { return orphan.get() == &call; });
  }
  askers.finish(error);
}
