// SPDX-License-Identifier: BSD-3-Clause
// NBD on the wire.
// Source: the NBD protocol, doc/proto.md of the NBD project, and its extension EXTENDED_HEADERS.
#pragma once

#include <array>
#include <boost/endian/arithmetic.hpp>
#include <cstdint>

namespace rnbd::nbd {

using boost::endian::big_uint16_t;
using boost::endian::big_uint32_t;
using boost::endian::big_uint64_t;

// ---- Handshake ----------------------------------------------------------------------------------

inline constexpr std::uint64_t kMagic = 0x4e42444d41474943;        ///< "NBDMAGIC"
inline constexpr std::uint64_t kOptionMagic = 0x49484156454f5054;  ///< "IHAVEOPT"
inline constexpr std::uint64_t kOptionReplyMagic = 0x0003e889045565a9;

inline constexpr std::uint16_t kFixedNewstyle = 1;  ///< of both sides
inline constexpr std::uint16_t kNoZeroes = 2;

struct Greeting {
  big_uint64_t magic;
  big_uint64_t version;
  big_uint16_t flags;
};
static_assert(sizeof(Greeting) == 18);

struct OptionHeader {
  big_uint64_t magic;
  big_uint32_t option;
  big_uint32_t length;
};
static_assert(sizeof(OptionHeader) == 16);

struct OptionReply {
  big_uint64_t magic;
  big_uint32_t option;
  big_uint32_t type;
  big_uint32_t length;
};
static_assert(sizeof(OptionReply) == 20);

enum class Option : std::uint32_t {
  export_name = 1,
  abort = 2,
  list = 3,
  starttls = 5,
  info = 6,
  go = 7,
  structured_reply = 8,
  list_meta_context = 9,
  set_meta_context = 10,
  extended_headers = 11,
};

enum class Reply : std::uint32_t {
  ack = 1,
  server = 2,
  info = 3,
  meta_context = 4,
  unsupported = 0x80000001,
  policy = 0x80000002,
  tls_required = 0x80000005,
  invalid = 0x80000003,
  unknown = 0x80000006,
  shutdown = 0x80000007,
  too_big = 0x80000009,
  extended_headers_required = 0x8000000a,
};

enum class Info : std::uint16_t { export_ = 0, name = 1, description = 2, block_size = 3 };

// The transmission flags of an export.
inline constexpr std::uint16_t kHasFlags = 1 << 0;
inline constexpr std::uint16_t kReadOnly = 1 << 1;
inline constexpr std::uint16_t kSendFlush = 1 << 2;
inline constexpr std::uint16_t kSendFua = 1 << 3;
inline constexpr std::uint16_t kRotational = 1 << 4;
inline constexpr std::uint16_t kSendTrim = 1 << 5;
inline constexpr std::uint16_t kSendWriteZeroes = 1 << 6;
inline constexpr std::uint16_t kSendDf = 1 << 7;
inline constexpr std::uint16_t kCanMultiConn = 1 << 8;
inline constexpr std::uint16_t kSendCache = 1 << 10;
inline constexpr std::uint16_t kSendFastZero = 1 << 11;
inline constexpr std::uint16_t kBlockStatusPayload = 1 << 12;

inline constexpr std::uint32_t kMaxNameLength = 4096;  ///< bytes of a string

// ---- Transmission -------------------------------------------------------------------------------

inline constexpr std::uint32_t kRequestMagic = 0x25609513;
inline constexpr std::uint32_t kSimpleReplyMagic = 0x67446698;
inline constexpr std::uint32_t kStructuredReplyMagic = 0x668e33ef;
inline constexpr std::uint32_t kExtendedRequestMagic = 0x21e41c71;
inline constexpr std::uint32_t kExtendedReplyMagic = 0x6e8a278c;

/// A client's own name for its request; goes back as it came.
using Cookie = std::array<unsigned char, 8>;

struct RequestHeader {
  big_uint32_t magic;
  big_uint16_t flags;
  big_uint16_t type;
  Cookie cookie;
  big_uint64_t offset;
  big_uint32_t length;
};
static_assert(sizeof(RequestHeader) == 28);

struct ExtendedRequestHeader {
  big_uint32_t magic;
  big_uint16_t flags;
  big_uint16_t type;
  Cookie cookie;
  big_uint64_t offset;
  big_uint64_t length;  ///< of the payload, with kPayloadLength
};
static_assert(sizeof(ExtendedRequestHeader) == 32);

struct SimpleReply {
  big_uint32_t magic;
  big_uint32_t error;
  Cookie cookie;
};
static_assert(sizeof(SimpleReply) == 16);

struct Chunk {
  big_uint32_t magic;
  big_uint16_t flags;
  big_uint16_t type;
  Cookie cookie;
  big_uint32_t length;
};
static_assert(sizeof(Chunk) == 20);

struct ExtendedChunk {
  big_uint32_t magic;
  big_uint16_t flags;
  big_uint16_t type;
  Cookie cookie;
  big_uint64_t offset;  ///< of the request
  big_uint64_t length;
};
static_assert(sizeof(ExtendedChunk) == 32);

enum class Command : std::uint16_t {
  read = 0,
  write = 1,
  disconnect = 2,
  flush = 3,
  trim = 4,
  cache = 5,
  write_zeroes = 6,
  block_status = 7,
};

// The flags of a request.
inline constexpr std::uint16_t kFua = 1 << 0;
inline constexpr std::uint16_t kNoHole = 1 << 1;
inline constexpr std::uint16_t kDf = 1 << 2;
inline constexpr std::uint16_t kReqOne = 1 << 3;
inline constexpr std::uint16_t kFastZero = 1 << 4;
inline constexpr std::uint16_t kPayloadLength = 1 << 5;  ///< of extended headers

inline constexpr std::uint16_t kChunkDone = 1 << 0;
enum class ChunkType : std::uint16_t {
  none = 0,
  offset_data = 1,
  block_status = 5,
  extended_block_status = 6,
  error = 0x8001,
};

// The bodies of chunks. The data or the extents follow.

struct DataBody {
  big_uint64_t offset;
};
static_assert(sizeof(DataBody) == 8);

/// Without a message for people, which would be the rest of the chunk.
struct ErrorBody {
  big_uint32_t error;
  big_uint16_t message_length;
};
static_assert(sizeof(ErrorBody) == 6);

struct StatusBody {
  big_uint32_t context;
};
static_assert(sizeof(StatusBody) == 4);

struct ExtendedStatusBody {
  big_uint32_t context;
  big_uint32_t count;  ///< of extents
};
static_assert(sizeof(ExtendedStatusBody) == 8);

struct StatusExtent {
  big_uint32_t length;
  big_uint32_t flags;
};
static_assert(sizeof(StatusExtent) == 8);

struct ExtendedStatusExtent {
  big_uint64_t length;
  big_uint64_t flags;
};
static_assert(sizeof(ExtendedStatusExtent) == 16);

/// The payload of a BLOCK_STATUS that asks for one context only.
struct StatusFilter {
  big_uint64_t length;  ///< of the range
  big_uint32_t context;
};
static_assert(sizeof(StatusFilter) == 12);

// The states of base:allocation.
inline constexpr std::uint32_t kStateHole = 1 << 0;
inline constexpr std::uint32_t kStateZero = 1 << 1;

inline constexpr char kBaseAllocation[] = "base:allocation";
inline constexpr std::uint32_t kBaseAllocationId = 1;

}  // namespace rnbd::nbd
