// SPDX-License-Identifier: BSD-3-Clause
// The two 56-byte records that open a connection, and what rnbdkit peers add in their reserved
// bytes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "rdma/wire/endian.hpp"
#include "rdma/wire/result.hpp"

namespace rtrs::wire {

inline constexpr std::uint16_t kMagic = 0x1BBD;
inline constexpr std::uint16_t kVersion = 0x0200;  ///< major 2 in the high byte, minor 0
inline constexpr std::uint8_t kMajorVersion = 2;
inline constexpr std::uint16_t kDefaultPort = 1234;
inline constexpr std::uint32_t kMaxConnections = 4096;  ///< connections of one path

/// A session with less room could not carry an OPEN with its read header, or one sector.
inline constexpr std::uint32_t kMinMaxHeaderSize = 288 + 24;  ///< bytes
inline constexpr std::uint32_t kMinMaxIoSize = 512;           ///< bytes

inline constexpr std::uint16_t kExtensionMagic = 0x4B52;  ///< wire bytes "RK"
inline constexpr std::uint8_t kExtensionVersion = 1;

/// Features that only rnbdkit peers have. The lower half belongs to RTRS, the upper half to the
/// user protocol.
enum Feature : std::uint32_t {
  /// A session outlives its paths, and a write is carried out once, however often it is sent
  /// (docs/protocol.md, RTRS extension).
  kFeatureExactlyOnce = 1U << 0,
  /// The server may change the access state of a path (docs/protocol.md, access notices).
  kFeatureAccessNotice = 1U << 1,
  /// Each connection begins with a proof that both ends have the same key (docs/protocol.md,
  /// authentication).
  kFeatureAuthentication = 1U << 2,
  /// A session may have memory paths (docs/protocol.md, memory paths).
  kFeatureMemoryPaths = 1U << 3,
  /// Copies of a request may be under way on several paths at once, and each is answered
  /// (docs/protocol.md, races).
  kFeatureRaces = 1U << 4,
  /// Several servers take turns under one identity (docs/protocol.md, which server it is).
  kFeatureSharedIdentity = 1U << 5,
  kFeatureUserMessages =
      1U << 16,  ///< the RNBD extension messages (docs/protocol.md, RNBD extension)
};

/// The features on which both ends of a session agree. The others may change with the server's next
/// start: facts, and what each session agrees on anew.
constexpr std::uint32_t agreed_features(std::uint32_t features) {
  return features & ~(std::uint32_t{kFeatureSharedIdentity} | std::uint32_t{kFeatureRaces});
}

/// A server's preference among the paths to it. Lower is better.
enum class PathAccess : std::uint8_t {
  optimized = 0,
  non_optimized = 1,  ///< works, but others are better
  inaccessible = 2,   ///< no I/O for now
};

/// "optimized", "non-optimized" or "inaccessible", as users write it.
const char* to_string(PathAccess access);

/// Errors: bad_value.
Result<PathAccess> decode_access(std::uint32_t value);

/// The immediate of a notice that a path has this access state from now on, and of its answer.
/// Source: docs/protocol.md, access notices.
std::uint32_t access_immediate(PathAccess access);

/// The traffic that a path carries.
enum class PathKind : std::uint8_t {
  requests = 0,
  memory = 1,  ///< the client reads and writes regions of the server by itself, and nothing else
};

/// Rides in reserved bytes that Linux peers send as zero and ignore. Absent = features 0.
struct Extension {
  bool present = false;
  std::uint32_t features = 0;
  // Server to client only:
  std::uint64_t session_epoch = 0;   ///< which session this is: another one knows nothing of what
                                     ///< was sent before
  std::uint64_t volatile_epoch = 0;  ///< changes when unflushed writes may have been lost
  PathAccess access = PathAccess::optimized;
  std::uint64_t server_id = 0;  ///< which server this is, on whatever path; 0 = it does not tell
};

/// Client to server, once per connection.
/// Source: docs/protocol.md, connect request.
struct ConnectRequest {
  std::uint8_t cma_version = 0;
  std::uint8_t ip_version = 0;
  le16 magic = kMagic;
  le16 version = kVersion;
  le16 cid = 0;
  le16 cid_count = 0;
  le16 reconnect_count = 0;
  Uuid path_uuid{};
  Uuid session_uuid{};
  std::uint8_t first_connection = 0;  ///< bit 0: the server may create the session
  std::uint8_t kind = 0;              ///< PathKind; part of the extension
  le16 extension_magic = 0;
  std::uint8_t extension_version = 0;
  std::uint8_t reserved1 = 0;
  le32 features = 0;
  std::array<std::uint8_t, 2> reserved2{};
};
static_assert(sizeof(ConnectRequest) == 56);
static_assert(offsetof(ConnectRequest, magic) == 2);
static_assert(offsetof(ConnectRequest, version) == 4);
static_assert(offsetof(ConnectRequest, cid) == 6);
static_assert(offsetof(ConnectRequest, cid_count) == 8);
static_assert(offsetof(ConnectRequest, reconnect_count) == 10);
static_assert(offsetof(ConnectRequest, path_uuid) == 12);
static_assert(offsetof(ConnectRequest, session_uuid) == 28);
static_assert(offsetof(ConnectRequest, first_connection) == 44);
static_assert(offsetof(ConnectRequest, kind) == 45);
static_assert(offsetof(ConnectRequest, extension_magic) == 46);
static_assert(offsetof(ConnectRequest, features) == 50);

/// Server to client, in accept and in reject.
/// Source: docs/protocol.md, connect response.
struct ConnectResponse {
  le16 magic = kMagic;
  le16 version = kVersion;
  le16 error = 0;  ///< accept: 0; reject: negative errno in two's complement
  le16 queue_depth = 0;
  le32 max_io_size = 0;
  le32 max_header_size = 0;
  le32 flags = 0;
  le16 extension_magic = 0;
  std::uint8_t extension_version = 0;
  std::uint8_t reserved0 = 0;
  le32 features = 0;
  le64 session_epoch = 0;
  le64 volatile_epoch = 0;
  std::uint8_t access = 0;
  std::array<std::uint8_t, 3> reserved1{};
  le64 server_id = 0;
};
static_assert(sizeof(ConnectResponse) == 56);
static_assert(offsetof(ConnectResponse, error) == 4);
static_assert(offsetof(ConnectResponse, queue_depth) == 6);
static_assert(offsetof(ConnectResponse, max_io_size) == 8);
static_assert(offsetof(ConnectResponse, max_header_size) == 12);
static_assert(offsetof(ConnectResponse, flags) == 16);
static_assert(offsetof(ConnectResponse, extension_magic) == 20);
static_assert(offsetof(ConnectResponse, features) == 24);
static_assert(offsetof(ConnectResponse, session_epoch) == 28);
static_assert(offsetof(ConnectResponse, volatile_epoch) == 36);
static_assert(offsetof(ConnectResponse, access) == 44);
static_assert(offsetof(ConnectResponse, server_id) == 48);

/// ConnectResponse::flags: every reply brings a new key for its chunk.
inline constexpr std::uint32_t kFlagNewRkey = 0x2;

/// The request of a client; all fields checked.
struct ConnectParameters {
  std::uint16_t cid = 0;
  std::uint16_t cid_count = 0;
  std::uint16_t reconnect_count = 0;
  Uuid path_uuid{};
  Uuid session_uuid{};
  bool first_connection = false;
  PathKind kind = PathKind::requests;
  Extension extension;
};

/// The grant of a server; all fields checked.
struct AcceptParameters {
  std::uint16_t queue_depth = 0;
  std::uint32_t max_io_size = 0;
  std::uint32_t max_header_size = 0;
  bool new_rkey = false;
  Extension extension;

  std::uint32_t chunk_size() const { return max_io_size + max_header_size; }
};

ConnectRequest encode(const ConnectParameters& parameters);
ConnectResponse encode(const AcceptParameters& parameters);

/// The reject record.
///
/// Units: error is a positive errno.
ConnectResponse encode_reject(int error);

/// Judges a client's record by content only: short private data arrives zero-padded over verbs.
///
/// Errors: too_short, bad_magic, bad_version, bad_count (cid or cid_count out of range), bad_value
/// (a kind of path that there is not, or that was not offered).
/// Source: docs/protocol.md, admission.
Result<ConnectParameters> decode_connect_request(ConstBytes bytes);

/// The errno of a reject, or 0 for an accept (positive errno).
struct ConnectAnswer {
  int error = 0;
  AcceptParameters accept;  ///< valid when error == 0
};

/// Errors: too_short, bad_magic, bad_version, bad_value (sizes that cannot work).
Result<ConnectAnswer> decode_connect_response(ConstBytes bytes);

}  // namespace rtrs::wire
