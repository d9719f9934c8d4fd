// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/vhost/messages.hpp"

#include <cstring>

namespace rnbd::vhost {
namespace {

using rtrs::wire::bytes_of;
using rtrs::wire::copy_of;
using rtrs::wire::DecodeError;

struct WireRingState {
  le32 index;
  le32 number;
};
static_assert(sizeof(WireRingState) == 8);

struct WireRingAddresses {
  le32 index;
  le32 flags;
  le64 descriptors;
  le64 used;
  le64 available;
  le64 log;
};
static_assert(sizeof(WireRingAddresses) == 40);

struct WireConfig {
  le32 offset;
  le32 size;
  le32 flags;
};
static_assert(sizeof(WireConfig) == 12);

struct WireMemoryTable {
  le32 count;
  le32 padding;
};
static_assert(sizeof(WireMemoryTable) == 8);

constexpr std::uint64_t kRingOfDescriptor = 0xFF;
constexpr std::uint64_t kNoDescriptor = 0x100;

bool is_known(std::uint32_t type) {
  switch (static_cast<MessageType>(type)) {
    case MessageType::get_features:
    case MessageType::set_features:
    case MessageType::set_owner:
    case MessageType::reset_owner:
    case MessageType::set_mem_table:
    case MessageType::set_vring_num:
    case MessageType::set_vring_addr:
    case MessageType::set_vring_base:
    case MessageType::get_vring_base:
    case MessageType::set_vring_kick:
    case MessageType::set_vring_call:
    case MessageType::set_vring_err:
    case MessageType::get_protocol_features:
    case MessageType::set_protocol_features:
    case MessageType::get_queue_num:
    case MessageType::set_vring_enable:
    case MessageType::get_config:
    case MessageType::set_config:
      return true;
  }
  return false;
}

using Payload = decltype(Message::payload);
constexpr auto fail = [](DecodeError error) { return tl::unexpected(error); };

Result<Payload> decode_state(ConstBytes payload) {
  if (payload.size() != sizeof(WireRingState)) return fail(DecodeError::bad_length);
  const auto state = copy_of<WireRingState>(payload);
  if (state.index >= kMaxQueues) return fail(DecodeError::bad_count);
  return RingState{state.index, state.number};
}

Result<Payload> decode_bits(ConstBytes payload) {
  if (payload.size() != sizeof(le64)) return fail(DecodeError::bad_length);
  return Bits{copy_of<le64>(payload)};
}

Result<Payload> decode_addresses(ConstBytes payload) {
  if (payload.size() != sizeof(WireRingAddresses)) return fail(DecodeError::bad_length);
  const auto all = copy_of<WireRingAddresses>(payload);
  if (all.index >= kMaxQueues) return fail(DecodeError::bad_count);
  return RingAddresses{all.index, all.descriptors, all.used, all.available};
}

Result<Payload> decode_descriptor(ConstBytes payload, std::size_t descriptors) {
  if (payload.size() != sizeof(le64)) return fail(DecodeError::bad_length);
  const std::uint64_t bits = copy_of<le64>(payload);
  if ((bits & ~(kRingOfDescriptor | kNoDescriptor)) != 0) return fail(DecodeError::bad_value);
  const RingDescriptor ring{static_cast<std::uint32_t>(bits & kRingOfDescriptor),
                            (bits & kNoDescriptor) == 0};
  if (ring.index >= kMaxQueues) return fail(DecodeError::bad_count);
  if (descriptors != (ring.present ? 1U : 0U)) return fail(DecodeError::bad_count);
  return ring;
}

Result<Payload> decode_memory(ConstBytes payload, std::size_t descriptors) {
  if (payload.size() < sizeof(WireMemoryTable)) return fail(DecodeError::bad_length);
  const auto head = copy_of<WireMemoryTable>(payload);
  if (head.count > kMaxRegions || head.count != descriptors) return fail(DecodeError::bad_count);
  const ConstBytes rest = payload.subspan(sizeof(head));
  if (rest.size() != head.count * sizeof(MemoryRegion)) return fail(DecodeError::bad_length);
  MemoryTable table{.count = head.count};
  if (!rest.empty()) std::memcpy(table.regions.data(), rest.data(), rest.size());
  return table;
}

Result<Payload> decode_config(ConstBytes payload) {
  if (payload.size() < sizeof(WireConfig)) return fail(DecodeError::bad_length);
  const auto config = copy_of<WireConfig>(payload);
  if (payload.size() - sizeof(config) != config.size) return fail(DecodeError::bad_length);
  if (config.offset > kMaxConfig || config.size > kMaxConfig - config.offset)
    return fail(DecodeError::bad_value);
  return ConfigRange{config.offset, config.size};
}

}  // namespace

Result<CheckedHeader> decode_header(ConstBytes bytes) {
  if (bytes.size() < sizeof(MessageHeader)) return fail(DecodeError::too_short);
  const auto header = copy_of<MessageHeader>(bytes);
  if ((header.flags & kVersionMask) != kVersion) return fail(DecodeError::bad_version);
  if (!is_known(header.type)) return fail(DecodeError::bad_type);
  if ((header.flags & ~(kVersionMask | kNeedReplyFlag)) != 0) return fail(DecodeError::bad_value);
  if (header.size > kMaxPayload) return fail(DecodeError::too_long);
  return CheckedHeader{static_cast<MessageType>(header.type.value()),
                       (header.flags & kNeedReplyFlag) != 0, header.size};
}

Result<Message> decode_message(const CheckedHeader& header, ConstBytes payload,
                               std::size_t descriptors) {
  if (payload.size() != header.size) return fail(DecodeError::bad_length);
  Result<Payload> decoded = Payload{};
  std::size_t wanted = 0;
  switch (header.type) {
    case MessageType::get_features:
    case MessageType::set_owner:
    case MessageType::reset_owner:
    case MessageType::get_protocol_features:
    case MessageType::get_queue_num:
      if (!payload.empty()) decoded = fail(DecodeError::bad_length);
      break;
    case MessageType::set_features:
    case MessageType::set_protocol_features:
      decoded = decode_bits(payload);
      break;
    case MessageType::set_vring_num:
    case MessageType::set_vring_base:
    case MessageType::get_vring_base:
    case MessageType::set_vring_enable:
      decoded = decode_state(payload);
      break;
    case MessageType::set_vring_addr:
      decoded = decode_addresses(payload);
      break;
    case MessageType::set_vring_kick:
    case MessageType::set_vring_call:
    case MessageType::set_vring_err:
      decoded = decode_descriptor(payload, descriptors);
      wanted = descriptors;
      break;
    case MessageType::set_mem_table:
      decoded = decode_memory(payload, descriptors);
      wanted = descriptors;
      break;
    case MessageType::get_config:
    case MessageType::set_config:
      decoded = decode_config(payload);
      break;
  }
  if (!decoded) return fail(decoded.error());
  if (descriptors != wanted) return fail(DecodeError::bad_count);
  return Message{header.type, header.needs_reply, *decoded};
}

// ---- Answers ------------------------------------------------------------------------------------

Answer::Answer(MessageType type) {
  append(bytes_of(MessageHeader{static_cast<std::uint32_t>(type), kVersion | kReplyFlag, 0U}));
}

void Answer::append(ConstBytes bytes) {
  std::memcpy(bytes_.data() + size_, bytes.data(), bytes.size());
  size_ += bytes.size();
  const le32 payload = static_cast<std::uint32_t>(size_ - sizeof(MessageHeader));
  std::memcpy(bytes_.data() + offsetof(MessageHeader, size), &payload, sizeof(payload));
}

Answer Answer::bits(MessageType type, std::uint64_t value) {
  Answer answer{type};
  answer.append(bytes_of(le64{value}));
  return answer;
}

Answer Answer::ring_state(MessageType type, RingState state) {
  Answer answer{type};
  answer.append(bytes_of(WireRingState{state.index, state.number}));
  return answer;
}

Answer Answer::config(ConfigRange range, ConstBytes content) {
  Answer answer{MessageType::get_config};
  answer.append(bytes_of(WireConfig{range.offset, range.size, 0U}));
  answer.append(content.subspan(range.offset, range.size));
  return answer;
}

}  // namespace rnbd::vhost
