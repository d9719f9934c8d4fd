// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/messages.hpp"

#include <algorithm>
#include <cstring>

#include "rdma/wire/ensure.hpp"

namespace rnbd::wire {
namespace {

bool is_control(char c) { return (c >= '\0' && c < ' ') || c == '\x7F'; }

template <class T>
void append(std::vector<std::byte>& message, const T& part) {
  const ConstBytes bytes = rtrs::wire::bytes_of(part);
  message.insert(message.end(), bytes.begin(), bytes.end());
}

}  // namespace

bool is_valid_device_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxDeviceName &&
         std::none_of(name.begin(), name.end(), is_control);
}

Result<MessageType> decode_type(ConstBytes bytes) {
  if (bytes.size() < sizeof(Header)) return tl::unexpected(DecodeError::too_short);
  return static_cast<MessageType>(rtrs::wire::copy_of<Header>(bytes).type.value());
}

Result<Io> decode_io(ConstBytes bytes) {
  const auto type = decode_type(bytes);
  if (!type) return tl::unexpected(type.error());
  if (*type != MessageType::io) return tl::unexpected(DecodeError::bad_type);
  if (bytes.size() < kMinIoSize) return tl::unexpected(DecodeError::too_short);
  std::array<std::byte, sizeof(Io)> padded{};
  std::copy_n(bytes.begin(), kMinIoSize, padded.begin());
  auto io = rtrs::wire::copy_of<Io>(padded);
  io.header.padding = 0;
  return io;
}

Result<OpenRequest> decode_open(ConstBytes bytes) {
  const auto open = decode<Open>(bytes, MessageType::open);
  if (!open) return tl::unexpected(open.error());
  if (open->access_mode > static_cast<std::uint8_t>(AccessMode::migration))
    return tl::unexpected(DecodeError::bad_value);
  const auto& field = open->device_name;
  // Without a NUL in the field the name has 255 characters, one more than is valid.
  const auto end = std::find(field.begin(), field.end(), '\0');
  OpenRequest request{static_cast<AccessMode>(open->access_mode), open->flags,
                      std::string(field.begin(), end)};
  if (!is_valid_device_name(request.device_name)) return tl::unexpected(DecodeError::bad_name);
  return request;
}

OpenOrder order_of(ConstBytes message, std::size_t size) {
  if (message.size() < size + sizeof(OpenOrder)) return {};
  return rtrs::wire::copy_of<OpenOrder>(message.subspan(size));
}

Open encode_open(std::string_view device_name, AccessMode mode) {
  RTRS_ENSURE(is_valid_device_name(device_name));
  Open open;
  open.header = header_of(MessageType::open);
  open.access_mode = static_cast<std::uint8_t>(mode);
  std::copy_n(device_name.data(), device_name.size(), open.device_name.begin());
  return open;
}

Who encode_who(std::string_view device_name) {
  RTRS_ENSURE(is_valid_device_name(device_name));
  Who who;
  who.header = header_of(MessageType::who);
  std::copy_n(device_name.data(), device_name.size(), who.device_name.begin());
  return who;
}

Result<std::string> decode_who(ConstBytes bytes) {
  const auto who = decode<Who>(bytes, MessageType::who);
  if (!who) return tl::unexpected(who.error());
  const auto& field = who->device_name;
  std::string name(field.begin(), std::find(field.begin(), field.end(), '\0'));
  if (!is_valid_device_name(name)) return tl::unexpected(DecodeError::bad_name);
  return name;
}

std::vector<std::byte> encode_who_response(const WhoAnswer& answer) {
  const std::string_view text = std::string_view{answer.text}.substr(0, kMaxWho);
  WhoResponse head;
  head.flags = answer.refused ? kWhoRefused : std::uint16_t{0};
  head.header = header_of(MessageType::who_response);
  head.length = static_cast<std::uint16_t>(text.size());
  std::vector<std::byte> message;
  append(message, head);
  for (const char c : text) message.push_back(static_cast<std::byte>(c));
  return message;
}

Result<WhoAnswer> decode_who_response(ConstBytes bytes) {
  const auto head = decode<WhoResponse>(bytes, MessageType::who_response);
  if (!head) return tl::unexpected(head.error());
  bytes = bytes.subspan(sizeof(WhoResponse));
  if (head->length > std::min(kMaxWho, bytes.size()))
    return tl::unexpected(DecodeError::bad_length);
  WhoAnswer answer{.refused = (head->flags & kWhoRefused) != 0};
  for (const std::byte byte : bytes.first(head->length)) answer.text += static_cast<char>(byte);
  if (std::any_of(answer.text.begin(), answer.text.end(), is_control))
    return tl::unexpected(DecodeError::bad_value);
  return answer;
}

std::vector<std::byte> encode_block_status_response(std::span<const Extent> extents) {
  BlockStatusResponse head;
  head.header = header_of(MessageType::block_status_response);
  head.count = static_cast<std::uint32_t>(extents.size());
  std::vector<std::byte> message;
  message.reserve(sizeof(head) + extents.size_bytes());
  append(message, head);
  for (const Extent& extent : extents) append(message, extent);
  return message;
}

Result<std::vector<Extent>> decode_block_status_response(ConstBytes bytes, std::uint64_t length) {
  const auto head = decode<BlockStatusResponse>(bytes, MessageType::block_status_response);
  if (!head) return tl::unexpected(head.error());
  bytes = bytes.subspan(sizeof(BlockStatusResponse));
  const std::size_t count = head->count;
  if (count == 0 || count > bytes.size() / sizeof(Extent))
    return tl::unexpected(DecodeError::bad_count);

  std::vector<Extent> extents;
  extents.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto extent = rtrs::wire::copy_of<Extent>(bytes.subspan(i * sizeof(Extent)));
    extent.reserved = 0;
    const std::uint64_t covered = extent.length;
    if (covered == 0 || covered > length) return tl::unexpected(DecodeError::bad_length);
    length -= covered;
    extents.push_back(extent);
  }
  return extents;
}

}  // namespace rnbd::wire
