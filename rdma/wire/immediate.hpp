// SPDX-License-Identifier: BSD-3-Clause
// The 32 bits that travel beside a message: what kind of event, which chunk, where its header is.
#pragma once

#include <bit>
#include <cstdint>

namespace rtrs::wire {

/// Kinds of immediates (bits 31..28). Values not listed are ignored by every peer.
enum class ImmediateType : std::uint8_t {
  io_request = 0,                   ///< client to server: payload = buffer id and header offset
  io_response = 1,                  ///< server to client: payload = errno and buffer id
  io_response_with_invalidate = 2,  ///< as above, after a SEND_WITH_INV
  /// Both ways on connection 0; with kFeatureExactlyOnce also client to server on the others.
  heartbeat = 8,
  heartbeat_ack = 9,  ///< answers a heartbeat on its connection
  goodbye = 10,       ///< client to server, connection 0, kFeatureExactlyOnce: the session ends
  /// Server to client, connection 0, kFeatureAccessNotice: payload = PathAccess. Sent back when it
  /// has been acted on.
  access = 11,
  /// Server to client, connection 0, kFeatureMemoryPaths: the server wants memory back that it has
  /// exposed; payload = how often it has said so. Sent back when the client has heard it.
  recall = 12,
};

inline constexpr unsigned kImmediatePayloadBits = 28;
inline constexpr std::uint32_t kImmediatePayloadMask = (1U << kImmediatePayloadBits) - 1;
inline constexpr unsigned kResponseBufferBits = 19;
inline constexpr std::uint32_t kResponseErrnoMask = 0x1FF;

/// 0 for n = 1, otherwise the number of bits of n - 1.
constexpr unsigned ceil_log2(std::uint32_t n) {
  return n <= 1 ? 0U : static_cast<unsigned>(std::bit_width(n - 1));
}

/// Bits of a request payload that hold the header offset.
///
/// Units:  queue_depth in chunks, 1..65535.
/// Source: docs/protocol.md, immediates.
constexpr unsigned offset_bits(std::uint32_t queue_depth) {
  return kImmediatePayloadBits - ceil_log2(queue_depth);
}

/// True when every buffer id and every offset of such a session fits into an immediate.
constexpr bool fits_immediate(std::uint32_t queue_depth, std::uint32_t chunk_size) {
  return queue_depth >= 1 && queue_depth <= 65535 && chunk_size >= 1 &&
         ceil_log2(queue_depth) + ceil_log2(chunk_size) <= kImmediatePayloadBits;
}

constexpr ImmediateType type_of(std::uint32_t immediate) {
  return static_cast<ImmediateType>(immediate >> kImmediatePayloadBits);
}

constexpr std::uint32_t make_immediate(ImmediateType type, std::uint32_t payload) {
  return (static_cast<std::uint32_t>(type) << kImmediatePayloadBits) |
         (payload & kImmediatePayloadMask);
}

struct RequestImmediate {
  std::uint32_t buffer_id;
  std::uint32_t header_offset;  ///< bytes from the start of the chunk to the RTRS header
};

constexpr std::uint32_t encode(RequestImmediate request, std::uint32_t queue_depth) {
  return make_immediate(ImmediateType::io_request,
                        (request.buffer_id << offset_bits(queue_depth)) | request.header_offset);
}

/// The fields as they are; the caller compares them with the session's queue depth and chunk size.
constexpr RequestImmediate decode_request(std::uint32_t immediate, std::uint32_t queue_depth) {
  const std::uint32_t payload = immediate & kImmediatePayloadMask;
  const unsigned bits = offset_bits(queue_depth);
  return {payload >> bits, payload & ((1U << bits) - 1)};
}

struct ResponseImmediate {
  std::uint32_t buffer_id;
  int error;  ///< errno, positive, 0 = success; only 9 bits travel
};

constexpr std::uint32_t encode(ResponseImmediate response,
                               ImmediateType type = ImmediateType::io_response) {
  const auto error = static_cast<std::uint32_t>(response.error) & kResponseErrnoMask;
  return make_immediate(type, (error << kResponseBufferBits) | response.buffer_id);
}

constexpr ResponseImmediate decode_response(std::uint32_t immediate) {
  const std::uint32_t payload = immediate & kImmediatePayloadMask;
  return {payload & ((1U << kResponseBufferBits) - 1),
          static_cast<int>(payload >> kResponseBufferBits)};
}

inline constexpr std::uint32_t kHeartbeat = make_immediate(ImmediateType::heartbeat, 0);
inline constexpr std::uint32_t kHeartbeatAck = make_immediate(ImmediateType::heartbeat_ack, 0);
inline constexpr std::uint32_t kGoodbye = make_immediate(ImmediateType::goodbye, 0);

/// The recall with the number `count`, which wraps.
constexpr std::uint32_t recall_immediate(std::uint32_t count) {
  return make_immediate(ImmediateType::recall, count);
}

static_assert(kHeartbeat == 0x8000'0000 && kHeartbeatAck == 0x9000'0000);
static_assert(encode(RequestImmediate{5, 0x1020}, 512) == 0x0028'1020);
static_assert(encode(ResponseImmediate{5, 5}) == 0x1028'0005);

}  // namespace rtrs::wire
