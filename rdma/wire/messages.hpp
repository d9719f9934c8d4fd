// SPDX-License-Identifier: BSD-3-Clause
// RTRS messages after the handshake: info exchange, request headers, key updates.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rdma/wire/endian.hpp"
#include "rdma/wire/result.hpp"

namespace rtrs::wire {

enum class MessageType : std::uint16_t {
  info_request = 0,
  info_response = 1,
  write = 2,
  read = 3,
  rkey_response = 4,
};

inline constexpr std::size_t kMaxSessionName = 254;
inline constexpr std::size_t kMaxUserMessage = 288;  ///< bytes, with the additions of RTRS

/// Client to server on connection 0: under which name this session is known.
struct InfoRequest {
  le16 type = static_cast<std::uint16_t>(MessageType::info_request);
  std::array<char, 255> session_name{};
  std::array<std::uint8_t, 15> reserved{};
};
static_assert(sizeof(InfoRequest) == 272);
static_assert(offsetof(InfoRequest, session_name) == 2);

/// Memory of a peer that we may write.
struct Descriptor {
  le64 address = 0;
  le32 key = 0;
  le32 length = 0;
};
static_assert(sizeof(Descriptor) == 16);
static_assert(offsetof(Descriptor, key) == 8 && offsetof(Descriptor, length) == 12);

/// Server to client on connection 0, followed by `count` descriptors of the chunk memory.
struct InfoResponseHeader {
  le16 type = static_cast<std::uint16_t>(MessageType::info_response);
  le16 count = 0;
  le32 error = 0;  ///< of a refusal, whose count is 0: a negative errno in two's complement
};
static_assert(sizeof(InfoResponseHeader) == 8 && offsetof(InfoResponseHeader, count) == 2);
static_assert(offsetof(InfoResponseHeader, error) == 4);

/// Ends a read request in its chunk; followed by `descriptor_count` (0 or 1) descriptors.
struct ReadHeader {
  le16 type = static_cast<std::uint16_t>(MessageType::read);
  le16 user_length = 0;
  le16 flags = 0;
  le16 descriptor_count = 0;
};
static_assert(sizeof(ReadHeader) == 8);
static_assert(offsetof(ReadHeader, user_length) == 2 && offsetof(ReadHeader, flags) == 4);
static_assert(offsetof(ReadHeader, descriptor_count) == 6);

/// ReadHeader::flags: invalidate descriptor 0 before the reply.
inline constexpr std::uint16_t kNeedInvalidate = 0x1;

/// Ends a write request in its chunk.
struct WriteHeader {
  le16 type = static_cast<std::uint16_t>(MessageType::write);
  le16 user_length = 0;
};
static_assert(sizeof(WriteHeader) == 4 && offsetof(WriteHeader, user_length) == 2);

/// Ends the user message of every request of RTRS direction "write" in a session with
/// kFeatureExactlyOnce, and is counted in its length.
/// Source: docs/protocol.md, RTRS extension.
struct WriteTrailer {
  le32 generation = 0;  ///< of the permit; the same however often this request is sent
  le16 flags = 0;
  le16 reserved = 0;
};
static_assert(sizeof(WriteTrailer) == 8 && offsetof(WriteTrailer, flags) == 4);

/// WriteTrailer::flags: do not carry it out if that was not begun; answer when it has ended.
inline constexpr std::uint16_t kSettle = 0x1;

/// True when `a` was given out after `b`; generations wrap around.
constexpr bool is_newer(std::uint32_t a, std::uint32_t b) {
  return static_cast<std::int32_t>(a - b) > 0;
}

/// Payload of a reply in new-key mode.
struct RkeyMessage {
  le16 type = static_cast<std::uint16_t>(MessageType::rkey_response);
  le16 buffer_id = 0;
  le32 key = 0;
};
static_assert(sizeof(RkeyMessage) == 8);
static_assert(offsetof(RkeyMessage, buffer_id) == 2 && offsetof(RkeyMessage, key) == 4);

/// Where one chunk of the server is, seen from the client.
struct ChunkAddress {
  std::uint64_t address = 0;
  std::uint32_t key = 0;
};

/// A request as the server reads it out of a chunk; all lengths checked against each other and the
/// chunk.
struct RequestHeader {
  bool is_read = false;
  bool need_invalidate = false;
  bool has_descriptor = false;
  std::uint32_t data_length = 0;  ///< bytes of data in front of the user message
  std::uint32_t user_offset = 0;  ///< where the user message starts in the chunk (= data_length)
  std::uint32_t user_length = 0;
  Descriptor descriptor;  ///< valid when has_descriptor
};

/// True for a name that a session may have: 1..254 bytes, printable, without '/' and '.'.
bool is_valid_session_name(std::string_view name);

/// The name must be valid.
InfoRequest encode_info_request(std::string_view session_name);

/// Errors: too_short, too_long, bad_type, bad_name.
Result<std::string> decode_info_request(ConstBytes bytes);

/// One message that describes chunk memory; at most 65535 descriptors.
std::vector<std::byte> encode_info_response(std::span<const Descriptor> descriptors);

/// The answer to a client that is not let in; `error` is an errno.
InfoResponseHeader encode_info_refusal(int error);

/// The errno of an info response that is a refusal; 0 = it is none.
int refusal_of_info_response(ConstBytes bytes);

/// Walks the descriptors and yields one address per chunk.
///
/// Units:  chunk_size in bytes; the result has queue_depth entries.
/// Errors: too_short, too_long, bad_type, bad_count, bad_length.
/// Source: docs/protocol.md, info response.
Result<std::vector<ChunkAddress>> decode_info_response(ConstBytes bytes, std::uint32_t queue_depth,
                                                       std::uint32_t chunk_size);

/// Reads a request header that starts at `offset` of a chunk. The chunk is memory that the peer may
/// change at any time: every field is copied once, then checked.
///
/// Errors: too_short (header beyond the chunk's end), bad_type, bad_count, bad_length.
/// Source: docs/protocol.md, requests.
Result<RequestHeader> decode_request_header(ConstBytes chunk, std::uint32_t offset);

/// Errors: too_short, bad_type, bad_value (buffer_id is not `expected_buffer`).
Result<RkeyMessage> decode_rkey_message(ConstBytes bytes, std::uint32_t expected_buffer);

}  // namespace rtrs::wire
