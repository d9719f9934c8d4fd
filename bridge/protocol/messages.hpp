// SPDX-License-Identifier: BSD-3-Clause
// RNBD messages: block clients and servers exchange them inside RTRS requests.
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

namespace rnbd::wire {

using rtrs::wire::ConstBytes;
using rtrs::wire::DecodeError;
using rtrs::wire::le16;
using rtrs::wire::le32;
using rtrs::wire::le64;
using rtrs::wire::Result;
using rtrs::wire::Uuid;

inline constexpr std::uint8_t kProtocolMajor = 2;
/// A feature of the user protocol's half, see rtrs::wire::Feature: a device may be opened without
/// its writer's reservation, which is claimed before the first change.
inline constexpr std::uint32_t kFeatureClaims = 1U << 17;
inline constexpr std::size_t kMaxDeviceName = 254;
inline constexpr std::uint32_t kSectorSize = 512;

enum class MessageType : std::uint16_t {
  session_info = 0,
  session_info_response = 1,
  open = 2,
  open_response = 3,
  io = 4,
  close = 5,
  // Only between rnbdkit peers (rtrs feature kFeatureUserMessages); a Linux server answers EINVAL.
  device_info = 0x8001,
  device_info_response = 0x8002,
  list_exports = 0x8003,
  list_exports_response = 0x8004,
  block_status = 0x8005,
  block_status_response = 0x8006,
  cache = 0x8007,
  claim = 0x8009,  ///< with kFeatureClaims; answered like device_info
  directory = 0x800b,
  directory_response = 0x800c,
  who = 0x800d,
  who_response = 0x800e,
};

enum class AccessMode : std::uint8_t { read_only = 0, read_write = 1, migration = 2 };

constexpr const char* to_string(AccessMode mode) {
  switch (mode) {
    case AccessMode::read_only:
      return "ro";
    case AccessMode::read_write:
      return "rw";
    case AccessMode::migration:
      return "migration";
  }
  return "?";
}

/// First 4 bytes of every message.
struct Header {
  le16 type = 0;
  le16 padding = 0;
};
static_assert(sizeof(Header) == 4);

/// Both directions; `version` is the sender's major protocol version.
struct SessionInfo {
  Header header;
  std::uint8_t version = kProtocolMajor;
  std::array<std::uint8_t, 31> reserved{};
};
static_assert(sizeof(SessionInfo) == 36 && offsetof(SessionInfo, version) == 4);

struct Open {
  Header header;
  std::uint8_t access_mode = 0;
  std::uint8_t flags = 0;  ///< between own peers; 0 of Linux's
  std::array<char, 255> device_name{};
  std::array<std::uint8_t, 3> reserved1{};
};
static_assert(sizeof(Open) == 264);
static_assert(offsetof(Open, access_mode) == 4 && offsetof(Open, device_name) == 6);

/// In Open::flags: the session had it open, and opens it in its next life at the server.
inline constexpr std::uint8_t kOpenAgain = 1;
/// Likewise, of a read-write OPEN with kFeatureClaims: nothing is changed before a CLAIM.
inline constexpr std::uint8_t kOpenUnclaimed = 2;

/// Follows in an OPEN and a CLOSE between own peers. OPENs are numbered from 1 on. Those below
/// `settled` have ended for the client, even if copies of them are still under way.
struct OpenOrder {
  le32 number = 0;  ///< OPEN: its own; CLOSE: the number of the device's OPEN
  le32 settled = 0;
};
struct NumberedOpen {
  Open open;
  OpenOrder order;
};
static_assert(sizeof(NumberedOpen) == 272);

enum CachePolicy : std::uint8_t { kCacheFua = 1, kCacheWriteback = 2 };

struct OpenResponse {
  Header header;
  le32 device_id = 0;
  le64 sectors = 0;  ///< of 512 bytes
  le32 max_hw_sectors = 0;
  le32 max_write_zeroes_sectors = 0;
  le32 max_discard_sectors = 0;
  le32 discard_granularity = 0;  ///< bytes
  le32 discard_alignment = 0;    ///< bytes
  le16 physical_block_size = 0;  ///< bytes
  le16 logical_block_size = 0;   ///< bytes
  le16 max_segments = 0;
  le16 secure_discard = 0;
  std::uint8_t rotational = 0;
  std::uint8_t cache_policy = 0;
  std::array<std::uint8_t, 10> reserved{};
};
static_assert(sizeof(OpenResponse) == 56);
static_assert(offsetof(OpenResponse, device_id) == 4 && offsetof(OpenResponse, sectors) == 8);
static_assert(offsetof(OpenResponse, max_hw_sectors) == 16);
static_assert(offsetof(OpenResponse, max_write_zeroes_sectors) == 20);
static_assert(offsetof(OpenResponse, max_discard_sectors) == 24);
static_assert(offsetof(OpenResponse, discard_granularity) == 28);
static_assert(offsetof(OpenResponse, discard_alignment) == 32);
static_assert(offsetof(OpenResponse, physical_block_size) == 36);
static_assert(offsetof(OpenResponse, logical_block_size) == 38);
static_assert(offsetof(OpenResponse, max_segments) == 40);
static_assert(offsetof(OpenResponse, secure_discard) == 42);
static_assert(offsetof(OpenResponse, rotational) == 44);
static_assert(offsetof(OpenResponse, cache_policy) == 45);

struct Close {
  Header header;
  le32 device_id = 0;
};
static_assert(sizeof(Close) == 8 && offsetof(Close, device_id) == 4);
struct NumberedClose {
  Header header;
  le32 device_id = 0;  ///< kUnknownDevice: the one that OPEN `order.number` opened, if any
  OpenOrder order;
};
static_assert(sizeof(NumberedClose) == 16);
inline constexpr std::uint32_t kUnknownDevice = 0xFFFF'FFFF;

/// Bits 7..0 of Io::rw.
enum class IoOperation : std::uint8_t {
  read = 0,
  write = 1,
  flush = 2,
  discard = 3,
  secure_erase = 4,
  write_zeroes = 5,
};

/// Bits 8.. of Io::rw.
enum IoFlag : std::uint32_t {
  kIoSync = 0x100,
  kIoFua = 0x200,
  kIoPreflush = 0x400,
  kIoNoUnmap = 0x800,
  kIoCopy = 0x2000'0000,  ///< of a write to a member that is not in step: its content is not new
  kIoFast =
      0x4000'0000,  ///< rnbdkit peers only: fail with EOPNOTSUPP rather than write zeroes slowly
};

struct Io {
  Header header;
  le32 device_id = 0;
  le64 sector = 0;
  le32 rw = 0;
  le32 length = 0;  ///< bytes
  le16 priority = 0;
  std::array<std::uint8_t, 6> padding{};

  IoOperation operation() const { return static_cast<IoOperation>(rw & 0xFF); }
  std::uint32_t flags() const { return rw & ~0xFFU; }
};
static_assert(sizeof(Io) == 32);
static_assert(offsetof(Io, device_id) == 4 && offsetof(Io, sector) == 8);
static_assert(offsetof(Io, rw) == 16 && offsetof(Io, length) == 20 && offsetof(Io, priority) == 24);
/// 32-bit peers send 28 bytes; the last field ends at 26.
inline constexpr std::size_t kMinIoSize = 26;

// Extension messages, only between rnbdkit peers.

/// DeviceInfoResponse::flags: facts for which the OPEN response has no room.
enum DeviceFlag : std::uint32_t {
  kDeviceReadOnly = 1,  ///< the export itself is read-only
  kDeviceRotational = 2,
  kDeviceExtents = 4,       ///< block_status tells holes from data
  kDeviceFastZero = 8,      ///< kIoFast is understood, and zeroing is fast at least sometimes.
  kDeviceCache = 16,        ///< the cache message starts a read-ahead
  kDeviceMultiWriter = 32,  ///< a flush covers writes of every connection.
  kDeviceNoFlush = 64,      ///< the storage has no flush, and one is refused
  kDeviceNoFua = 128,       ///< it has neither FUA nor a flush to do that by
  kDeviceInUse =
      256,  ///< of a device that is not writable: another session may write, and has a path
  kDeviceEvicted =
      512,  ///< the operator has ended this session's writing, and nobody else has written since
  kDeviceShrunk = 1024,  ///< the storage is smaller than `size`: what is behind its end fails
};

struct DeviceInfo {
  Header header;
  le32 device_id = 0;
};
static_assert(sizeof(DeviceInfo) == 8);

struct DeviceInfoResponse {
  Header header;
  le32 device_id = 0;
  le64 size = 0;       ///< bytes; may end inside the last sector
  Uuid export_uuid{};  ///< the same as long as the export is the same storage
  le32 flags = 0;
  le32 preferred_block = 0;  ///< bytes
  /// Another number of the same upper half than before: meanwhile another session has had it open
  /// for writing. 0 = unknown, or not open for writing.
  le64 writer_serial = 0;
  le32 server_life = 0;  ///< which life of the server has had it open ever since; 0 = none
  /// Another number than before: writes that were answered and not flushed may be lost since.
  le32 storage_life = 0;
  /// Of an unclaimed device: for its CLAIM. Another number: somebody may have changed it since.
  le64 sight = 0;
  /// The server's record of the storage's writers: its origin (upper half) and the last number that
  /// was given, which each reservation raises. kNoWriterYet; 0 = unknown.
  le64 generation = 0;
  /// The same when this session came, before its own reservation. It comes anew with each new OPEN
  /// of kOpenAgain.
  le64 found_generation = 0;
};
/// Servers and clients of before have no more.
inline constexpr std::size_t kMinDeviceInfoResponse = 64;
/// DeviceInfoResponse::generation: the server would know of a writer, and there was none.
inline constexpr std::uint64_t kNoWriterYet = 1;
static_assert(sizeof(DeviceInfoResponse) == 80 && offsetof(DeviceInfoResponse, size) == 8);
static_assert(offsetof(DeviceInfoResponse, export_uuid) == 16);
static_assert(offsetof(DeviceInfoResponse, flags) == 32);
static_assert(offsetof(DeviceInfoResponse, preferred_block) == 36);
static_assert(offsetof(DeviceInfoResponse, writer_serial) == 40);
static_assert(offsetof(DeviceInfoResponse, server_life) == 48);
static_assert(offsetof(DeviceInfoResponse, storage_life) == 52);
static_assert(offsetof(DeviceInfoResponse, sight) == 56);
static_assert(offsetof(DeviceInfoResponse, generation) == kMinDeviceInfoResponse);
static_assert(offsetof(DeviceInfoResponse, found_generation) == 72);

/// Takes the writer's reservation of a device that was opened without.
struct Claim {
  Header header;
  le32 device_id = 0;
  /// As the DEVICE INFO said on which the claimant's knowledge of the content rests.
  le64 sight = 0;
  le64 writer_serial = 0;
};
static_assert(sizeof(Claim) == 24);
static_assert(offsetof(Claim, sight) == 8 && offsetof(Claim, writer_serial) == 16);

/// Asks for names of exports, from `first` on in the server's order.
struct ListExports {
  Header header;
  le32 first = 0;
};
static_assert(sizeof(ListExports) == 8);

/// Followed by `count` entries: le16 name length, le16 description length, name, description.
struct ListExportsResponse {
  Header header;
  le32 total = 0;
  le32 count = 0;
};
static_assert(sizeof(ListExportsResponse) == 12 && offsetof(ListExportsResponse, count) == 8);

/// Asks for the writer of an export, which is named as in an OPEN.
struct Who {
  Header header;
  std::array<char, 255> device_name{};
  std::uint8_t reserved = 0;
};
static_assert(sizeof(Who) == 260 && offsetof(Who, device_name) == 4);

/// WhoResponse::flags.
inline constexpr std::uint16_t kWhoRefused = 1;  ///< see WhoAnswer

/// Followed by the text, in UTF-8 without control characters. Empty: nobody.
struct WhoResponse {
  Header header;
  le16 length = 0;  ///< bytes of the text
  le16 flags = 0;
};
static_assert(sizeof(WhoResponse) == 8 && offsetof(WhoResponse, length) == 4);
/// Bytes of the text.
inline constexpr std::size_t kMaxWho = 1024;

struct BlockStatus {
  Header header;
  le32 device_id = 0;
  le64 offset = 0;  ///< bytes
  le64 length = 0;  ///< bytes
};
static_assert(sizeof(BlockStatus) == 24);
static_assert(offsetof(BlockStatus, offset) == 8 && offsetof(BlockStatus, length) == 16);

/// Followed by `count` Extent entries that start at the asked offset and touch each other.
struct BlockStatusResponse {
  Header header;
  le32 count = 0;
};
static_assert(sizeof(BlockStatusResponse) == 8);

enum ExtentFlag : std::uint32_t { kExtentHole = 1, kExtentZero = 2 };

struct Extent {
  le64 length = 0;  ///< bytes
  le32 flags = 0;
  le32 reserved = 0;
};
static_assert(sizeof(Extent) == 16 && offsetof(Extent, flags) == 8);

struct Cache {
  Header header;
  le32 device_id = 0;
  le64 offset = 0;
  le64 length = 0;
};
static_assert(sizeof(Cache) == 24);
static_assert(offsetof(Cache, offset) == 8 && offsetof(Cache, length) == 16);

// The codec.

constexpr Header header_of(MessageType type) { return {static_cast<std::uint16_t>(type), 0}; }

/// Errors: too_short.
Result<MessageType> decode_type(ConstBytes bytes);

/// Exact or longer than the struct; trailing bytes, padding and reserved fields are ignored (Linux
/// clients leave garbage there). Errors: too_short, bad_type.
template <class T>
Result<T> decode(ConstBytes bytes, MessageType type) {
  auto actual = decode_type(bytes);
  if (!actual) return tl::unexpected(actual.error());
  if (*actual != type) return tl::unexpected(DecodeError::bad_type);
  if (bytes.size() < sizeof(T)) return tl::unexpected(DecodeError::too_short);
  return rtrs::wire::copy_of<T>(bytes);
}

/// Accepts the 26 to 32 bytes that peers of either word size send. Errors: too_short, bad_type.
Result<Io> decode_io(ConstBytes bytes);

/// True for a name that a device may have: 1..254 bytes without control characters.
bool is_valid_device_name(std::string_view name);

/// Errors: as is_valid_device_name().
Who encode_who(std::string_view device_name);
/// The name. Errors: too_short, bad_type, bad_name.
Result<std::string> decode_who(ConstBytes bytes);
/// The words of a server about the users of an export.
struct WhoAnswer {
  std::string text = {};
  /// The text says why this client may not open it at all, and what helps. Otherwise it names the
  /// writers.
  bool refused = false;
  friend bool operator==(const WhoAnswer&, const WhoAnswer&) = default;
};
/// A text that is too long is cut.
std::vector<std::byte> encode_who_response(const WhoAnswer& answer);
/// Errors: too_short, bad_type, bad_length, bad_value (control characters).
Result<WhoAnswer> decode_who_response(ConstBytes bytes);

struct OpenRequest {
  AccessMode mode;
  std::uint8_t flags;
  std::string device_name;
};

/// Errors: too_short, bad_type, bad_value (access mode), bad_name (empty, not terminated, control
/// characters).
Result<OpenRequest> decode_open(ConstBytes bytes);

/// The order of a message that is `size` bytes without it; zeros when it has none.
OpenOrder order_of(ConstBytes message, std::size_t size);

/// The name must be valid.
Open encode_open(std::string_view device_name, AccessMode mode);

struct ExportName {
  std::string name;
  std::string description;
  friend bool operator==(const ExportName&, const ExportName&) = default;
};

struct ExportPage {
  std::uint32_t total = 0;
  std::vector<ExportName> exports;
};

/// As many entries from `first` on as fit into `capacity` bytes; names must be valid. A page with
/// room for a name is never empty before the end: a long description is cut instead.
std::vector<std::byte> encode_export_page(const std::vector<ExportName>& all, std::uint32_t first,
                                          std::size_t capacity);

/// An empty page means that there is no more. Bytes after the last entry are ignored.
///
/// Errors: too_short, bad_type, bad_length, bad_count, bad_name.
Result<ExportPage> decode_export_page(ConstBytes bytes);

std::vector<std::byte> encode_block_status_response(std::span<const Extent> extents);

/// At least one extent, none of them empty. Bytes after the last extent are ignored.
///
/// Errors: too_short, bad_type, bad_count, bad_length (extents that do not fit into `length`).
Result<std::vector<Extent>> decode_block_status_response(ConstBytes bytes, std::uint64_t length);

}  // namespace rnbd::wire
