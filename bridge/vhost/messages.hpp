// SPDX-License-Identifier: BSD-3-Clause
// The messages of the vhost-user protocol that a block device needs, one decoder for all of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "rdma/wire/endian.hpp"
#include "rdma/wire/result.hpp"

namespace rnbd::vhost {

using rtrs::wire::ConstBytes;
using rtrs::wire::le16;
using rtrs::wire::le32;
using rtrs::wire::le64;
using rtrs::wire::MutableBytes;
using rtrs::wire::Result;

/// Requests of a front-end, as the specification numbers them.
enum class MessageType : std::uint32_t {
  get_features = 1,
  set_features = 2,
  set_owner = 3,
  reset_owner = 4,
  set_mem_table = 5,
  set_vring_num = 8,
  set_vring_addr = 9,
  set_vring_base = 10,
  get_vring_base = 11,
  set_vring_kick = 12,
  set_vring_call = 13,
  set_vring_err = 14,
  get_protocol_features = 15,
  set_protocol_features = 16,
  get_queue_num = 17,
  set_vring_enable = 18,
  get_config = 24,
  set_config = 25,
};

inline constexpr std::uint64_t kProtocolMq = std::uint64_t{1} << 0;
inline constexpr std::uint64_t kProtocolReplyAck = std::uint64_t{1} << 3;
inline constexpr std::uint64_t kProtocolConfig = std::uint64_t{1} << 9;

inline constexpr std::uint32_t kMaxQueues = 128;
inline constexpr std::uint32_t kMaxRegions = 8;
inline constexpr std::uint32_t kMaxConfig = 256;     ///< bytes
inline constexpr std::uint32_t kMaxRing = 1U << 15;  ///< descriptors

/// The beginning of each message.
struct MessageHeader {
  le32 type;
  le32 flags;
  le32 size;  ///< bytes of the payload
};
static_assert(sizeof(MessageHeader) == 12);

inline constexpr std::uint32_t kVersionMask = 3;
inline constexpr std::uint32_t kVersion = 1;
inline constexpr std::uint32_t kReplyFlag = 4;
inline constexpr std::uint32_t kNeedReplyFlag = 8;

/// A part of the guest's memory, and its place in the file that comes with it.
struct MemoryRegion {
  le64 guest;   ///< address of the guest
  le64 size;    ///< bytes
  le64 user;    ///< address of the front-end's process
  le64 offset;  ///< bytes
};
static_assert(sizeof(MemoryRegion) == 32);

inline constexpr std::size_t kMaxPayload = 12 + kMaxConfig;
static_assert(kMaxPayload >= 8 + kMaxRegions * sizeof(MemoryRegion));

/// A payload of 64 bits.
struct Bits {
  std::uint64_t value = 0;
};
/// A number about one ring.
struct RingState {
  std::uint32_t index = 0;
  std::uint32_t number = 0;
};
/// The places of a ring's parts, as addresses of the front-end's process.
struct RingAddresses {
  std::uint32_t index = 0;
  std::uint64_t descriptors = 0;
  std::uint64_t used = 0;
  std::uint64_t available = 0;
};
/// A ring whose descriptor comes with the message, or that has none.
struct RingDescriptor {
  std::uint32_t index = 0;
  bool present = false;
};
/// Regions whose descriptors come with the message, in this order.
struct MemoryTable {
  std::uint32_t count = 0;
  std::array<MemoryRegion, kMaxRegions> regions{};
};
/// A part of the device's configuration.
struct ConfigRange {
  std::uint32_t offset = 0;  ///< bytes
  std::uint32_t size = 0;    ///< bytes; the range ends at kMaxConfig or before
};

struct Message {
  MessageType type{};
  bool needs_reply = false;
  std::variant<std::monostate, Bits, RingState, RingAddresses, RingDescriptor, MemoryTable,
               ConfigRange>
      payload;
};

/// A header that has been checked: its type is one of the above, its payload is not too long.
struct CheckedHeader {
  MessageType type{};
  bool needs_reply = false;
  std::uint32_t size = 0;  ///< bytes of the payload
};

/// Decodes the header of a request.
///
/// Errors: too_short, bad_version, bad_type, bad_value (flags), too_long.
Result<CheckedHeader> decode_header(ConstBytes bytes);
/// Decodes a request, of which `descriptors` descriptors have come.
///
/// Errors: bad_length (of the payload), bad_count (descriptors, regions, rings), bad_value.
Result<Message> decode_message(const CheckedHeader& header, ConstBytes payload,
                               std::size_t descriptors);

/// A message of the back-end.
class Answer {
 public:
  static Answer bits(MessageType type, std::uint64_t value);
  static Answer ring_state(MessageType type, RingState state);
  /// The content of a range of the configuration.
  static Answer config(ConfigRange range, ConstBytes content);

  ConstBytes bytes() const { return {bytes_.data(), size_}; }

 private:
  explicit Answer(MessageType type);
  void append(ConstBytes bytes);

  std::array<std::byte, sizeof(MessageHeader) + kMaxPayload> bytes_{};
  std::size_t size_ = 0;
};

}  // namespace rnbd::vhost
