// SPDX-License-Identifier: BSD-3-Clause
// The library's own protocol: the header of a call inside an RTRS user message.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rdma/core/client/lane.hpp"
#include "rdma/wire/endian.hpp"
#include "rdma/wire/messages.hpp"
#include "rdma/wire/result.hpp"

namespace rtrs::library {

using wire::ConstBytes;
using wire::MutableBytes;

/// The user protocol of a session (wire::Feature, upper half): its messages are calls.
inline constexpr std::uint32_t kFeatureCalls = 1U << 24;

enum class CallKind : std::uint8_t {
  call = 1,    ///< carry this out
  piece = 2,   ///< data of a call that do not fit into its message
  fetch = 3,   ///< a part of an answer that does not fit into the reply
  forget = 4,  ///< the whole answer has arrived
};

enum CallFlag : std::uint8_t {
  kRepeatable = 1U << 0,  ///< no answer is kept for it
  kStaged = 1U << 1,      ///< its data come in pieces
  /// It was on its way to a server that was restarted: not to be carried out.
  kVoid = 1U << 2,
  kResend = 1U << 3,
  kMaybeDone = 1U << 4,  ///< a server before this one may have carried it out
};
inline constexpr std::uint8_t kKnownFlags = 31;

/// The reply to a call that is not sent as a write: the length of the answer (8 bytes), then as
/// much of it as there is room for here. The rest is fetched.
inline constexpr std::size_t kReplyHeader = sizeof(wire::le64);
inline constexpr std::size_t kDirectAnswer = 4096 - kReplyHeader;  ///< bytes at most
constexpr std::size_t reply_size(std::uint64_t room) {
  return kReplyHeader + (room < kDirectAnswer ? static_cast<std::size_t>(room) : kDirectAnswer);
}

/// The server's answer to a call before all its data have arrived. No errno of a system.
inline constexpr int kIncomplete = 510;

/// Source: docs/protocol.md, calls.
struct CallHeader {
  CallKind kind = CallKind::call;
  std::uint8_t flags = 0;
  wire::le16 slot = 0;
  wire::le32 generation = 0;  ///< of the slot, from 1 on: a newer one ends the one before
  wire::le16 message_length = 0;
  wire::le16 inline_length = 0;  ///< data behind the message
  wire::le32 piece_size = 0;     ///< bytes of every piece but the last
  wire::le64 number = 0;         ///< of the call, among all of the client
  wire::le64 out_length = 0;     ///< bytes of data
  wire::le64 place = 0;          ///< call: room for the answer; piece, fetch: offset
};
static_assert(sizeof(CallHeader) == 40);
static_assert(offsetof(CallHeader, slot) == 2);
static_assert(offsetof(CallHeader, generation) == 4);
static_assert(offsetof(CallHeader, message_length) == 8);
static_assert(offsetof(CallHeader, inline_length) == 10);
static_assert(offsetof(CallHeader, piece_size) == 12);
static_assert(offsetof(CallHeader, number) == 16);
static_assert(offsetof(CallHeader, out_length) == 24);
static_assert(offsetof(CallHeader, place) == 32);

/// Room for a message and the data behind it.
inline constexpr std::size_t kMaxMessage =
    wire::kMaxUserMessage - sizeof(wire::WriteTrailer) - sizeof(CallHeader);
static_assert(kMaxMessage == 240);

/// A message as it came; the spans point into it.
struct CallMessage {
  CallHeader header;
  ConstBytes message;
  ConstBytes inline_data;

  bool has(CallFlag flag) const { return (header.flags & flag) != 0; }
};

/// Errors: too_short, bad_type, bad_value, bad_length.
wire::Result<CallMessage> decode_call(ConstBytes bytes);

}  // namespace rtrs::library
