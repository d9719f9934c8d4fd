// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/library/call_message.hpp"

#include "rdma/wire/handshake.hpp"

namespace rtrs::library {
namespace {

using wire::DecodeError;

/// Lengths that contradict each other.
bool is_consistent(const CallMessage& call) {
  const CallHeader& header = call.header;
  switch (header.kind) {
    case CallKind::call:
      if (!call.has(kStaged)) return true;
      return header.inline_length == 0 && header.out_length != 0;
    case CallKind::piece:
      return header.piece_size >= wire::kMinMaxIoSize && header.place < header.out_length &&
             header.place % header.piece_size == 0;
    default:
      return true;
  }
}

}  // namespace

wire::Result<CallMessage> decode_call(ConstBytes bytes) {
  if (bytes.size() < sizeof(CallHeader)) return tl::unexpected(DecodeError::too_short);
  CallMessage call;
  call.header = wire::copy_of<CallHeader>(bytes);
  if (call.header.kind < CallKind::call || call.header.kind > CallKind::forget) {
    return tl::unexpected(DecodeError::bad_type);
  }
  if ((call.header.flags & ~kKnownFlags) != 0) return tl::unexpected(DecodeError::bad_value);
  const ConstBytes rest = bytes.subspan(sizeof(CallHeader));
  const std::size_t message = call.header.message_length;
  const std::size_t data = call.header.inline_length;
  if (message + data != rest.size()) return tl::unexpected(DecodeError::bad_length);
  call.message = rest.first(message);
  call.inline_data = rest.subspan(message);
  if (!is_consistent(call)) return tl::unexpected(DecodeError::bad_length);
  return call;
}

}  // namespace rtrs::library
