// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/incoming_call.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "rdma/library/server_session.hpp"

using namespace rtrs::library;
namespace wire = rtrs::wire;
using rtrs::ServerRequest;

void rtrs_request::reset() {
  state = State::idle;
  error = 0;
  if (!gathered.empty() && !gathered.complete()) session_.let_go(gathered.bytes());
  gathered.clear();
  forget_answer();
}

void rtrs_request::forget_answer() {
  if (std::exchange(lent, false)) session_.let_go(answer.bytes());
  answer.clear();
  give_back_room();
}

void rtrs_request::add_asker(ServerRequest& request, const CallMessage& call) {
  if (asker_ != nullptr) return more_askers_.push_back(&request);
  asker_ = &request;
  header_ = call.header;
  message_ = call.message;
  inline_ = call.inline_data;
}

rtrs_request::Askers rtrs_request::take_askers() {
  return {std::exchange(asker_, nullptr), std::exchange(more_askers_, {})};
}

int rtrs_request::prepare(std::uint64_t max_size) {
  const std::uint64_t room = header_.place;
  if (room > max_size) return EMSGSIZE;
  const bool fits =
      asker_->is_read ? asker_->data.size() == reply_size(room) : room == 0 && !is_staged();
  if (!fits) return EBADMSG;
  if (room <= kDirectAnswer) return 0;
  if (!budget_.take(room)) return ENOBUFS;
  reserved_ = room;
  return 0;
}

rtrs_incoming rtrs_request::view(const std::uint8_t (&client)[16]) {
  rtrs_incoming incoming{};
  incoming.size = sizeof(incoming);
  incoming.request = this;
  incoming.session = &session_;
  incoming.message = message_.data();
  incoming.message_length = message_.size();
  rtrs::wire::ConstBytes data = inline_;
  if (is_staged()) {
    data = gathered.bytes();
  } else if (!asker_->is_read) {
    data = asker_->data;
  }
  incoming.data = data.data();
  incoming.data_length = data.size();
  incoming.room = header_.place;
  const bool fits = incoming.room != 0 && incoming.room <= kDirectAnswer;
  incoming.answer = fits ? asker_->data.data() + kReplyHeader : nullptr;
  if (has(kRepeatable)) incoming.flags |= RTRS_REPEATABLE;
  if (has(kResend)) incoming.flags |= RTRS_RESEND;
  if (has(kMaybeDone)) incoming.flags |= RTRS_MAYBE_DONE;
  std::copy(std::begin(client), std::end(client), incoming.id.client);
  incoming.id.number = header_.number;
  return incoming;
}

/// Some errors are the library's own words.
int rtrs_request::judge(int end, std::size_t length) const {
  if (end < 0 || end >= kIncomplete || end == RTRS_UNKNOWN_OUTCOME || end == RTRS_FORKED)
    return EIO;
  if (end == 0 && length > header_.place) return EMSGSIZE;
  return end;
}

bool rtrs_request::keeps(std::size_t length) const {
  return !has(kRepeatable) || is_staged() || length > kDirectAnswer;
}

namespace rtrs::library {
namespace {

/// Larger answers are rare; their memory is not kept for the next one.
constexpr std::size_t kKeptRoom = 64 * 1024;

}  // namespace

void KeptAnswer::copy(ConstBytes answer) {
  clear();
  copy_.assign(answer.begin(), answer.end());
  bytes_ = copy_;
}

void KeptAnswer::hold(ConstBytes answer, void (*release)(void*), void* context) {
  clear();
  bytes_ = answer;
  release_ = release;
  context_ = context;
}

void KeptAnswer::clear() {
  bytes_ = {};
  auto* const release = std::exchange(release_, nullptr);
  if (release != nullptr) release(context_);
  copy_.clear();
  if (copy_.capacity() > kKeptRoom) copy_ = {};
}

}  // namespace rtrs::library
