// SPDX-License-Identifier: BSD-3-Clause
#include "tests/unit/library/calls_world.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace rtrs::library {
namespace {

constexpr unsigned kSlots = 4;
/// Bytes of a piece: of those that are copied, and of those that are received where they belong.
constexpr std::uint32_t kPieces[] = {4096, 20 * 1024};
constexpr std::size_t kMost = 60;  ///< messages under way, fewer than there are permits
constexpr int kAnyError = -1;      ///< of a message

}  // namespace

/// Becomes an operation of one request.
struct CallsWorld::Message final : Operation {
  Message(const CallHeader& header, std::string_view rest) {
    text.assign(reinterpret_cast<const char*>(&header), sizeof(header));
    text += rest;
    job.operation = this;
    job.context = this;
    request.context = this;
    request.done = [](ClientLane&, Request& done) {
      static_cast<Message*>(done.context)->finish(done.error);
    };
  }
  void start(ClientLane& lane) override {
    request.message = std::as_bytes(std::span{text});
    request.is_read = data.empty();
    request.read_data = std::as_writable_bytes(std::span{answer});
    request.write_data = std::as_bytes(std::span{data});
    lane.submit(request);
  }
  void cancel(ClientLane& lane) override { lane.cancel(request); }
  /// "" = it ended as it must.
  std::string judge() const {
    if (expected_error != kAnyError && error() != expected_error) {
      return what + " ends with " + std::to_string(error()) + " instead of " +
             std::to_string(expected_error);
    }
    if (error() != 0 || expected.empty() || answer.starts_with(expected)) return "";
    return what + " is answered with something else";
  }

  std::string what;
  Call* call = nullptr;
  bool is_call = false;
  int expected_error = 0;
  std::string expected;  ///< what the answer begins with
  std::string text;
  std::string data;
  std::string answer;
  Request request;
  LaneLoop::Job job;
};

std::string CallsWorld::pattern(std::uint32_t id, std::size_t size) {
  std::string text(size, '\0');
  for (std::size_t i = 0; i < size; ++i) text[i] = static_cast<char>(id * 31 + i + i / 251);
  return text;
}

CallsWorld::CallsWorld(std::uint64_t seed)
    : random_{seed},
      piece_{kPieces[seed % std::size(kPieces)]},
      server_{std::make_unique<TestServer>([this](const auto& incoming) { handle(incoming); })},
      slots_{kSlots} {
  ClientOptions options;
  options.session_name = "world";
  const auto port = static_cast<std::uint16_t>(rtrs_server_port(server_->server));
  options.paths = {{TransportKind::tcp, "", "127.0.0.1", port}};
  options.features = wire::kFeatureExactlyOnce | kFeatureCalls;
  options.lanes = 1;
  auto connected = Client::connect(options, {});
  REQUIRE(connected);
  client_ = std::move(*connected);
  loop_ = client_->take_lane(0);
}

std::string CallsWorld::run(int steps) {
  for (int i = 0; i < steps && complaint_.empty(); ++i) step();
  settle();
  loop_.reset();
  client_.reset();
  server_.reset();  // gives everything back
  if (complaint_.empty()) judge();
  return complaint_;
}

void CallsWorld::step() {
  while (under_way_.size() >= kMost) {
    finish_one_held();
    fence();
  }
  Call* const call = calls_.empty() ? nullptr : &any_call();
  const unsigned what = call == nullptr ? 0 : draw(20);
  if (what < 4) return begin_call();
  if (what < 10) return send_call(*call);
  if (what < 14) return send_piece(*call, draw(8));
  if (what < 16) return finish_one_held();
  if (what < 18) return send_fetch(*call);
  if (what < 19) return send_forget(*call);
  begin_next_call(*call);
}

/// Mostly a newest one.
CallsWorld::Call& CallsWorld::any_call() {
  if (!newest_.empty() && draw(4) != 0) {
    return *std::next(newest_.begin(), draw(static_cast<unsigned>(newest_.size())))->second;
  }
  return *std::next(calls_.begin(), draw(static_cast<unsigned>(calls_.size())));
}

void CallsWorld::begin_call() {
  const auto place = slots_.try_take();
  if (!place) return;
  if (newest_.contains(place->slot)) return complain("a slot is given to two calls");
  Call& call = calls_.emplace_back();
  newest_[place->slot] = &call;
  call.place = *place;
  const bool staged = draw(3) == 0;
  call.wish.id = static_cast<std::uint32_t>(calls_.size());
  call.wish.end = static_cast<End>(draw(5));
  call.wish.answer = draw(3) == 0 ? kDirectAnswer + draw(9000) : draw(200);
  call.wish.data = staged ? 1 + draw(5 * piece_) : draw(100);
  call.data = pattern(call.wish.id, call.wish.data);
  if (draw(4) == 0) call.flags |= kRepeatable;
  if (staged) {
    call.flags |= kStaged;
    call.sent_pieces.assign((call.data.size() + piece_ - 1) / piece_, false);
  }
  if (draw(4) == 0) send_call(call, /*is_void=*/true);
  if (draw(2) == 0) send_missing_pieces(call);
  send_call(call);
}

/// Its slot is given to the next one, whether it has ended or not.
void CallsWorld::begin_next_call(Call& call) {
  if (newest_[call.place.slot] != &call) return;
  newest_.erase(call.place.slot);
  slots_.give_back(call.place.slot);
  begin_call();
}

// ---- Messages -----------------------------------------------------------------------------------

CallHeader CallsWorld::header_of(const Call& call, CallKind kind) const {
  CallHeader header;
  header.kind = kind;
  header.slot = call.place.slot;
  header.generation = call.place.generation;
  header.number = call.place.number;
  header.out_length = call.data.size();
  header.piece_size = piece_;
  return header;
}

/// False: the server has seen a newer call of the slot.
bool CallsWorld::reaches(const Call& call) {
  std::uint32_t& seen = seen_[call.place.slot];
  if (call.place.generation < seen) return false;
  seen = call.place.generation;
  return true;
}

void CallsWorld::send(std::unique_ptr<Message> message) {
  Message& sent = *under_way_.emplace_back(std::move(message));
  loop_->start(sent.job);
  loop_->flush();
  collect();
}

void CallsWorld::send_call(Call& call, bool is_void) {
  CallHeader header = header_of(call, CallKind::call);
  header.flags = static_cast<std::uint8_t>(call.flags | (is_void ? kVoid : 0));
  header.message_length = sizeof(Wish);
  header.place = call.room();
  std::string rest(reinterpret_cast<const char*>(&call.wish), sizeof(Wish));
  if (!call.staged()) {
    header.inline_length = static_cast<std::uint16_t>(call.data.size());
    rest += call.data;
  }
  auto message = std::make_unique<Message>(header, rest);
  message->what = "call " + std::to_string(call.wish.id);
  message->call = &call;
  message->answer.assign(reply_size(call.room()), '?');
  message->expected_error = is_void ? ECANCELED : outcome_of(call);
  const wire::le64 length = call.wish.answer;
  message->expected.assign(reinterpret_cast<const char*>(&length), sizeof(length));
  message->expected += pattern(call.wish.id, call.wish.answer).substr(0, kDirectAnswer);
  send(std::move(message));
}

/// Of a message that says: carry this out.
int CallsWorld::outcome_of(Call& call) {
  if (!reaches(call) || call.forgotten) return ECANCELED;
  const bool all_there = std::ranges::find(call.sent_pieces, false) == call.sent_pieces.end();
  if (!call.complete && !all_there) return kIncomplete;
  call.complete = true;
  return call.fails() ? EDOM : 0;
}

void CallsWorld::send_piece(Call& call, std::size_t index) {
  if (!call.staged()) return;
  index %= call.sent_pieces.size();
  CallHeader header = header_of(call, CallKind::piece);
  header.place = index * piece_;
  auto message = std::make_unique<Message>(header, "");
  message->what = "piece of call " + std::to_string(call.wish.id);
  message->data = call.data.substr(index * piece_, piece_);
  // Behind the call nobody needs it, and how that has ended may be told.
  message->expected_error = !reaches(call) ? ECANCELED : call.complete ? kAnyError : 0;
  call.sent_pieces[index] = true;
  send(std::move(message));
}

void CallsWorld::send_missing_pieces(Call& call) {
  const bool in_order = draw(2) == 0;
  const std::size_t count = call.sent_pieces.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t index = in_order ? i : count - 1 - i;
    if (!call.sent_pieces[index]) send_piece(call, index);
  }
}

void CallsWorld::send_fetch(Call& call) {
  if (!call.has_more() || !reaches(call)) return;
  CallHeader header = header_of(call, CallKind::fetch);
  const std::size_t offset = kDirectAnswer + draw(call.wish.answer - kDirectAnswer);
  header.place = offset;
  auto message = std::make_unique<Message>(header, "");
  message->what = "rest of call " + std::to_string(call.wish.id);
  message->answer.assign(1 + draw(static_cast<unsigned>(call.wish.answer - offset)), '?');
  message->expected =
      pattern(call.wish.id, call.wish.answer).substr(offset, message->answer.size());
  send(std::move(message));
}

void CallsWorld::send_forget(Call& call) {
  if (!call.has_more() || !reaches(call)) return;
  auto message = std::make_unique<Message>(header_of(call, CallKind::forget), "");
  message->what = "end of call " + std::to_string(call.wish.id);
  call.forgotten = true;
  send(std::move(message));
}

// ---- Time ---------------------------------------------------------------------------------------

/// Waits until the server has dealt with all that was sent.
void CallsWorld::fence() {
  CallHeader header;
  header.slot = 0xFFFF;
  auto message = std::make_unique<Message>(header, "");
  message->what = "fence";
  message->expected_error = EBADMSG;
  const Message* const fence = message.get();
  send(std::move(message));
  const auto waits = [&] {
    return std::ranges::any_of(under_way_, [&](const auto& other) { return other.get() == fence; });
  };
  while (waits() && client_->alive()) pump();
}

void CallsWorld::pump() {
  constexpr int kSlice = 1000;  // milliseconds
  std::vector<pollfd> descriptors;
  loop_->watch(descriptors);
  poll(descriptors.data(), descriptors.size(), kSlice);
  while (loop_->progress(descriptors)) {
  }
  collect();
}

void CallsWorld::collect() {
  for (LaneLoop::Job* job = loop_->collect(); job != nullptr;) {
    const Message& ended = *static_cast<Message*>(std::exchange(job, job->next)->context);
    if (std::string wrong = ended.judge(); !wrong.empty()) complain(std::move(wrong));
    if (ended.call != nullptr && ended.error() == 0) ended.call->replied = true;
    std::erase_if(under_way_, [&](const auto& other) { return other.get() == &ended; });
  }
}

void CallsWorld::settle() {
  while (!under_way_.empty() && client_->alive()) {
    finish_one_held();
    fence();
  }
  if (!client_->alive()) complain("the session died: " + client_->failure());
}

// ---- The handler --------------------------------------------------------------------------------

void CallsWorld::handle(const rtrs_incoming& incoming) {
  Wish wish;
  std::memcpy(&wish, incoming.message, sizeof(wish));
  {
    const std::lock_guard lock{mutex_};
    ++executions_[wish.id];
    if (text_of(incoming.data, incoming.data_length) != pattern(wish.id, wish.data)) {
      bad_data_ = "call " + std::to_string(wish.id) + " is carried out with other data";
    }
    if (wish.end == End::later || wish.end == End::error_later) {
      return held_.push_back({incoming.request, wish});
    }
  }
  finish(incoming.request, wish);
}

void CallsWorld::finish(rtrs_request* request, const Wish& wish) {
  const bool fails = wish.end == End::error || wish.end == End::error_later;
  const std::string answer = pattern(wish.id, wish.answer);
  if (fails) return rtrs_finish(request, EDOM, nullptr, 0);
  if (wish.end != End::own_memory) return rtrs_finish(request, 0, answer.data(), answer.size());
  const std::unique_lock lock{mutex_};
  OwnMemory& kept = own_memory_.emplace_back(answer, &given_back_);
  const auto give_back = [](void* context) {
    auto& self = *static_cast<OwnMemory*>(context);
    std::ranges::fill(self.answer, '!');  // nobody must send it any more
    ++*self.given_back;
  };
  rtrs_finish_with(request, kept.answer.data(), kept.answer.size(), give_back, &kept);
}

/// On another thread than the server's.
void CallsWorld::finish_one_held() {
  std::unique_lock lock{mutex_};
  if (held_.empty()) return;
  const auto at = held_.begin() + draw(static_cast<unsigned>(held_.size()));
  const auto [request, wish] = *at;
  held_.erase(at);
  lock.unlock();
  finish(request, wish);
}

// ---- Verdict ------------------------------------------------------------------------------------

void CallsWorld::complain(std::string text) {
  if (complaint_.empty()) complaint_ = std::move(text);
}

void CallsWorld::judge() {
  if (!bad_data_.empty()) complain(bad_data_);
  if (given_back_ != own_memory_.size()) complain("memory is not given back, or twice");
  for (const Call& call : calls_) {
    const int runs = executions_[call.wish.id];
    const bool again = (call.flags & kRepeatable) != 0 && call.complete;
    if (again ? runs > 0 : runs == (call.complete ? 1 : 0)) continue;
    complain("call " + std::to_string(call.wish.id) + " is carried out " + std::to_string(runs) +
             " times");
  }
}

}  // namespace rtrs::library
