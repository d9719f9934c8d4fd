// SPDX-License-Identifier: BSD-3-Clause
// The bytes of the TCP binding: two hello records, then frames.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "rdma/wire/endian.hpp"
#include "rdma/wire/handshake.hpp"
#include "rdma/wire/result.hpp"

namespace rtrs::tcp {

using wire::ConstBytes;
using wire::le16;
using wire::le32;
using wire::le64;

inline constexpr std::array<char, 8> kHelloMagic{'R', 'T', 'R', 'S', '-', 'T', 'C', 'P'};
inline constexpr std::uint16_t kBindingVersion = 1;

/// Hello::digests, offered by the client, chosen by the server.
enum Digest : std::uint16_t {
  kDigestHeader = 1,  ///< CRC32C of every frame header
  kDigestData = 2,    ///< CRC32C of every payload
};

/// First record in each direction: the connect request or response of the handshake, and the
/// digests. Always protected by its own CRC32C.
struct Hello {
  std::array<char, 8> magic = kHelloMagic;
  le16 version = kBindingVersion;
  le16 digests = 0;
  le32 reserved = 0;
  std::array<std::byte, 56> record{};  ///< wire::ConnectRequest or wire::ConnectResponse
  le32 crc = 0;                        ///< CRC32C of all bytes before
};
static_assert(sizeof(Hello) == 76);
static_assert(offsetof(Hello, digests) == 10 && offsetof(Hello, record) == 16);
static_assert(offsetof(Hello, crc) == 72);

enum class Opcode : std::uint8_t {
  send = 1,
  write = 2,
  send_with_invalidate = 3,
  read = 4,       ///< of memory at key and address; the payload is a ReadRequest
  read_data = 5,  ///< the answer; the immediate is the request's token
};

/// FrameHeader::flags
inline constexpr std::uint8_t kHasImmediate = 1;

/// In front of every operation; followed by `length` bytes of payload.
struct FrameHeader {
  std::uint8_t opcode = 0;
  std::uint8_t flags = 0;
  le16 reserved = 0;
  le32 length = 0;     ///< bytes of payload
  le32 immediate = 0;  ///< with kHasImmediate
  le32 key = 0;        ///< write, read: key of the memory; send_with_invalidate: the key that ends
  le64 address = 0;    ///< write, read: where in that memory
  le32 payload_crc = 0;  ///< CRC32C of the payload, with kDigestData; otherwise 0
  le32 header_crc = 0;   ///< CRC32C of the 28 bytes before, with kDigestHeader; otherwise 0
};
static_assert(sizeof(FrameHeader) == 32);
static_assert(offsetof(FrameHeader, length) == 4 && offsetof(FrameHeader, address) == 16);
static_assert(offsetof(FrameHeader, payload_crc) == 24 && offsetof(FrameHeader, header_crc) == 28);

/// Payload of a read.
struct ReadRequest {
  le32 token = 0;   ///< repeated by the answer
  le32 length = 0;  ///< bytes to read
};
static_assert(sizeof(ReadRequest) == 8 && offsetof(ReadRequest, length) == 4);

/// No frame is longer: the largest chunk that an immediate can describe.
inline constexpr std::uint32_t kMaxPayload = 1U << 28;

/// Running CRC32C: start with kCrcStart, feed pieces, finish.
inline constexpr std::uint32_t kCrcStart = 0xFFFFFFFF;
std::uint32_t crc_update(std::uint32_t state, ConstBytes bytes);
constexpr std::uint32_t crc_finish(std::uint32_t state) { return ~state; }
inline std::uint32_t crc32c(ConstBytes bytes) { return crc_finish(crc_update(kCrcStart, bytes)); }

Hello make_hello(ConstBytes record, std::uint16_t digests);

/// For digest_errors(). Any thread.
void count_digest_error();

/// A peer's hello. Errors: too_short, bad_magic, bad_version, digest_mismatch.
wire::Result<Hello> decode_hello(ConstBytes bytes);

/// A peer's frame header. Errors: too_short, digest_mismatch, bad_type, bad_length, bad_value.
wire::Result<FrameHeader> decode_frame_header(ConstBytes bytes, bool check_digest);

}  // namespace rtrs::tcp
