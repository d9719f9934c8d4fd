// SPDX-License-Identifier: BSD-3-Clause
// One call at the server, from its first message until nobody asks for its answer any more.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "rdma/core/server/request.hpp"
#include "rdma/library/call_message.hpp"
#include "rdma/library/gathered_data.hpp"
#include "rdma/library/include/rtrs.h"
#include "rdma/wire/endian.hpp"

namespace rtrs::library {

using wire::ConstBytes;

/// A copy, or memory of the handler with the way to give it back.
///
/// Threads: one at a time.
class KeptAnswer {
 public:
  KeptAnswer() = default;
  ~KeptAnswer() { clear(); }
  KeptAnswer(const KeptAnswer&) = delete;
  KeptAnswer& operator=(const KeptAnswer&) = delete;

  ConstBytes bytes() const { return bytes_; }
  /// Throws std::bad_alloc.
  void copy(ConstBytes answer);
  void hold(ConstBytes answer, void (*release)(void*), void* context);
  void clear();

 private:
  ConstBytes bytes_;
  std::vector<std::byte> copy_;  ///< its memory stays for the next call
  void (*release_)(void*) = nullptr;
  void* context_ = nullptr;
};

}  // namespace rtrs::library

/// Threads: the session's event loop; message, data and what the handler does: whoever executes it.
struct rtrs_request {
 public:
  /// idle -> gathering -> executing -> done; idle -> executing
  enum class State : std::uint8_t {
    idle,
    gathering,  ///< pieces of its data have come, or were refused
    executing,  ///< the handler has it
    done,       ///< its answer is kept, if need be
  };

  rtrs_request(rtrs_session& session, rtrs::library::MemoryBudget& budget)
      : gathered{budget}, session_{session}, budget_{budget} {}
  ~rtrs_request() { reset(); }
  rtrs_request(const rtrs_request&) = delete;
  rtrs_request& operator=(const rtrs_request&) = delete;

  rtrs_session& session() const { return session_; }
  /// Begins the life of the next call. Nobody asks for the last one.
  void reset();
  void forget_answer();
  /// The answer is not as long as it might have been.
  void give_back_room() { budget_.give_back(std::exchange(reserved_, 0)); }
  /// The call has come, perhaps again.
  void add_asker(rtrs::ServerRequest& request, const rtrs::library::CallMessage& call);
  /// Those who wait for its end; afterwards nobody does.
  class Askers;
  Askers take_askers();

  /// Sees to it that the handler may have it. Errors: EBADMSG, EMSGSIZE, ENOBUFS; then it does not.
  int prepare(std::uint64_t max_size);
  /// The handler's view of the call.
  rtrs_incoming view(const std::uint8_t (&client)[16]);
  /// An errno that a client can be told for `error` and an answer of `length` bytes.
  int judge(int error, std::size_t length) const;
  /// Whether somebody may ask for an answer of `length` bytes, or its rest, when it has been sent.
  bool keeps(std::size_t length) const;
  bool is_staged() const { return has(rtrs::library::kStaged); }

  State state = State::idle;
  bool orphan = false;  ///< its slot belongs to a newer call
  bool lent = false;    ///< parts of the answer may not have been sent yet
  int error = 0;        ///< how it ended, or why it cannot begin
  rtrs::library::GatheredData gathered;
  rtrs::library::KeptAnswer answer;

 private:
  bool has(rtrs::library::CallFlag flag) const { return (header_.flags & flag) != 0; }

  rtrs_session& session_;
  rtrs::library::MemoryBudget& budget_;
  rtrs::library::CallHeader header_;
  rtrs::wire::ConstBytes message_;  ///< in the memory of the first asker
  rtrs::wire::ConstBytes inline_;   ///< likewise
  rtrs::ServerRequest* asker_ = nullptr;
  std::vector<rtrs::ServerRequest*> more_askers_;  ///< the same call, sent again
  std::uint64_t reserved_ = 0;                     ///< bytes for an answer that may be long
};

/// The messages that are to be answered with the end of a call.
class rtrs_request::Askers {
 public:
  Askers(rtrs::ServerRequest* first, std::vector<rtrs::ServerRequest*> more)
      : first_{first}, more_{std::move(more)} {}

  template <class Function>
  void for_each(Function function) const {
    if (first_ != nullptr) function(*first_);
    for (rtrs::ServerRequest* request : more_) function(*request);
  }
  /// Ends all of them; the session may be gone afterwards.
  void finish(int error) const {
    for_each([error](rtrs::ServerRequest& request) { request.finish(error); });
  }

 private:
  rtrs::ServerRequest* first_;
  std::vector<rtrs::ServerRequest*> more_;
};
