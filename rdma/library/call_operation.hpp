// SPDX-License-Identifier: BSD-3-Clause
// One call of a client as requests on a lane.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "rdma/core/client/lane.hpp"
#include "rdma/library/call_message.hpp"
#include "rdma/library/large_memory.hpp"
#include "rdma/library/sg_list.hpp"

namespace rtrs::library {

/// The lane's error for a request that found no path in time: no server can say so.
inline constexpr int kNoPathError = 4000;

/// An answer in memory that the library makes when it knows its length.
class OwnedAnswer {
 public:
  OwnedAnswer() = default;
  ~OwnedAnswer() { clear(); }
  OwnedAnswer(const OwnedAnswer&) = delete;
  OwnedAnswer& operator=(const OwnedAnswer&) = delete;

  /// False: there is no memory. The old content is gone.
  bool make(std::uint64_t length);
  SgList list() const { return SgList{{&memory_, 1}}; }
  /// Null when it is empty. The caller's, for large_free() or free().
  void* take() { return std::exchange(memory_, {}).iov_base; }
  void clear() { large_free(take()); }

 private:
  iovec memory_{};
};

/// A caller's request. All memory must stay until the operation has ended.
struct CallPlan {
  ConstBytes message;
  SgList out;
  SgList in;
  std::uint64_t room = 0;        ///< bytes that the answer may have: of `in`, or of `owned`
  OwnedAnswer* owned = nullptr;  ///< instead of `in`
  bool repeatable = false;
  bool resend = false;
  bool no_wait = false;
  std::uint16_t slot = 0;
  std::uint32_t generation = 0;
  std::uint64_t number = 0;
  std::uint32_t max_io_size = 0;  ///< bytes
  bool no_path_is_eio = false;    ///< the control connection has no error of its own for that
};

/// Cuts a call into requests and performs it. Data that do not fit into its message go ahead in
/// pieces. The rest of an answer that is longer than one reply follows. The call goes right behind
/// the last piece of its data; should it overtake one on another path, it is sent again when they
/// have arrived.
///
/// When the server has forgotten the session, nothing of the call is carried out there. A call that
/// may have been carried out before ends with ENOTRECOVERABLE, unless it may be sent again: then
/// all begins anew.
///
/// Errors:  see rtrs_call().
/// Threads: as rtrs::Operation.
/// Source:  docs/protocol.md, calls.
class CallOperation final : public Operation {
 public:
  static constexpr unsigned kWindow = 16;  ///< requests in flight

  /// How start() went; written before the lane is free again.
  struct Start {
    bool ended = false;    ///< the operation has finished already
    bool refused = false;  ///< with EAGAIN: CallPlan::no_wait
  };

  /// `started` may be null, and must outlive start().
  explicit CallOperation(const CallPlan& plan, Start* started = nullptr);
  ~CallOperation() override;

  void start(ClientLane& lane) override;
  void cancel(ClientLane& lane) override;

  /// Bytes of the answer; valid once it has ended without an error.
  std::uint64_t answer_length() const { return answer_length_; }
  bool refused() const { return refused_; }
  /// Should it have ended with the session, it may have been carried out.
  bool in_doubt() const { return in_doubt_; }

 private:
  struct Message {
    CallHeader header;
    std::array<std::byte, kMaxMessage> rest;
  };
  struct Fragment {
    Request request;
    CallOperation* owner = nullptr;
    unsigned index = 0;
    Message message;
    std::uint64_t offset = 0;  ///< of the answer in `in`
    bool voided = false;
    std::unique_ptr<std::byte[]> bounce;  ///< for a range in several parts
  };
  union Room {
    Room() {}
    ~Room() {}
    Fragment fragment;
  };

  /// The way of the data.
  enum class Carriage : std::uint8_t {
    in_call,  ///< as those of a write
    behind,   ///< behind the message
    staged,   ///< before the call, in pieces
  };
  /// The way of a call in one session. An overtaken call goes out once more, after its data.
  enum class Stage : std::uint8_t {
    sending,       ///< pieces, then the call
    called,        ///< the answer is awaited
    overtaken,     ///< the call came before its data, and waits for them now
    called_again,  ///< the answer is awaited
    answered,      ///< the rest of the answer is fetched
    forgotten,     ///< the server is told to forget the answer
  };
  /// The reason why nothing more is sent in this session. no_path outlasts lost.
  enum class Break : std::uint8_t {
    none,
    lost,  ///< something of it was in a session that is forgotten
    no_path,
  };

  static Carriage carriage_of(const CallPlan& plan);
  bool step(ClientLane& lane);
  void go_on(ClientLane& lane);
  bool is_all_here() const;
  int outcome() const;
  void start_over();
  Fragment& take(CallKind kind);
  void free(Fragment& fragment);
  bool give_data(Fragment& fragment, std::uint64_t offset, std::size_t length);
  bool give_room(Fragment& fragment, std::uint64_t offset, std::size_t length);
  void take_reply();
  void no_memory(Fragment& fragment);
  void submit(ClientLane& lane, Fragment& fragment, ConstBytes message, std::size_t inline_length);
  void submit_piece(ClientLane& lane);
  void submit_call(ClientLane& lane, Stage next);
  void submit_fetch(ClientLane& lane);
  void ended(Fragment& fragment);
  void failed(const Fragment& fragment);
  static void on_renew(Request& request);
  static void on_done(ClientLane& lane, Request& request);

  CallPlan plan_;
  Start* started_;
  const Carriage carriage_;
  std::uint64_t next_out_ = 0;
  std::uint64_t next_in_ = 0;
  Stage stage_ = Stage::sending;
  Break break_ = Break::none;
  int error_ = 0;           ///< the first one of the server
  bool refused_ = false;    ///< it has not begun
  bool call_sent_ = false;  ///< at any time: it may have been carried out
  bool in_doubt_ = false;
  bool going_on_ = false;
  std::array<std::byte, kReplyHeader + kDirectAnswer> reply_;  // not initialised: it is received
  std::uint64_t answer_length_ = 0;
  std::uint32_t busy_ = 0;  ///< bit i: fragments_[i] is in flight
  std::array<Room, kWindow> fragments_;
};

}  // namespace rtrs::library
