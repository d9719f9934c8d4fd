// SPDX-License-Identifier: BSD-3-Clause
// A server of the library, and a client that sends calls by hand: again, late, in pieces, in
// whatever order; and what must come of that.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "rdma/client.hpp"
#include "rdma/library/call_message.hpp"
#include "rdma/library/call_slots.hpp"
#include "tests/unit/library/bench.hpp"

namespace rtrs::library {

/// Draws what happens from a seed. The server is a real one, over TCP; all messages go in the order
/// in which they are sent.
class CallsWorld {
 public:
  explicit CallsWorld(std::uint64_t seed);
  /// Says what was wrong first; "" = nothing.
  std::string run(int steps);

 private:
  enum class End : std::uint8_t { now, later, error, error_later, own_memory };
  /// The message of a call to the handler.
  struct Wish {
    std::uint32_t id = 0;
    std::uint32_t data = 0;    ///< bytes
    std::uint32_t answer = 0;  ///< bytes
    End end = End::now;
  };
  /// An answer of the handler.
  struct OwnMemory {
    OwnMemory(std::string text, std::size_t* count) : answer{std::move(text)}, given_back{count} {}
    std::string answer;
    std::size_t* given_back;
  };
  struct Call {
    Wish wish;
    CallSlots::Taken place;
    std::uint8_t flags = 0;
    std::string data;
    std::vector<bool> sent_pieces;
    bool complete = false;  ///< it was sent, and all its data before
    bool replied = false;
    bool forgotten = false;
    std::size_t room() const { return wish.answer + wish.id % 3; }
    bool staged() const { return (flags & kStaged) != 0; }
    bool fails() const { return wish.end == End::error || wish.end == End::error_later; }
    bool has_more() const { return replied && !forgotten && wish.answer > kDirectAnswer; }
  };
  /// A message on its way, and what must come back.
  struct Message;

  void step();
  void begin_call();
  void begin_next_call(Call& call);
  void send_call(Call& call, bool is_void = false);
  int outcome_of(Call& call);
  void send_piece(Call& call, std::size_t index);
  void send_missing_pieces(Call& call);
  void send_fetch(Call& call);
  void send_forget(Call& call);
  void send(std::unique_ptr<Message> message);
  Call& any_call();
  CallHeader header_of(const Call& call, CallKind kind) const;
  bool reaches(const Call& call);
  void fence();
  void pump();
  void collect();
  void settle();
  void handle(const rtrs_incoming& incoming);
  void finish(rtrs_request* request, const Wish& wish);
  void finish_one_held();
  void judge();
  void complain(std::string text);
  unsigned draw(unsigned below) { return static_cast<unsigned>(random_() % below); }

  static std::string pattern(std::uint32_t id, std::size_t size);

  std::mt19937_64 random_;
  std::uint32_t piece_;  ///< bytes
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<LaneLoop> loop_;
  CallSlots slots_;
  std::list<Call> calls_;
  std::map<std::uint16_t, Call*> newest_;
  std::map<std::uint16_t, std::uint32_t> seen_;  ///< by the server: the newest generation of a slot
  std::list<std::unique_ptr<Message>> under_way_;
  std::string complaint_;

  std::mutex mutex_;  ///< guards what follows: the handler's
  std::map<std::uint32_t, int> executions_;
  std::vector<std::pair<rtrs_request*, Wish>> held_;
  std::list<OwnMemory> own_memory_;
  std::size_t given_back_ = 0;
  std::string bad_data_;
};

}  // namespace rtrs::library
