// SPDX-License-Identifier: BSD-3-Clause
#include "rdma/wire/messages.hpp"

#include <algorithm>
#include <atomic>
#include <limits>

#include "rdma/wire/ensure.hpp"

namespace rtrs::wire {
namespace {

/// Copies a struct out of memory that the peer may write meanwhile. The fence keeps the compiler
/// from reading a field again after it has been checked.
template <class T>
T copy_once(ConstBytes bytes) {
  const T copy = copy_of<T>(bytes);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  return copy;
}

constexpr int kMaxErrnoOfInfo = 4095;

constexpr std::uint16_t wire(MessageType type) { return static_cast<std::uint16_t>(type); }

bool is_session_name_character(char c) { return c >= ' ' && c <= '~' && c != '/' && c != '.'; }

/// The part of a read header that a write header does not have.
struct ReadHeaderTail {
  le16 flags;
  le16 descriptor_count;
};
static_assert(sizeof(WriteHeader) + sizeof(ReadHeaderTail) == sizeof(ReadHeader));

Result<RequestHeader> add_read_fields(RequestHeader header, ConstBytes rest) {
  if (rest.size() < sizeof(ReadHeaderTail)) return tl::unexpected(DecodeError::too_short);
  const auto tail = copy_once<ReadHeaderTail>(rest);
  const std::uint16_t count = tail.descriptor_count;
  if (count > 1) return tl::unexpected(DecodeError::bad_count);
  if (count == 0) return header;  // nothing to send back, so nothing to invalidate either

  rest = rest.subspan(sizeof(ReadHeaderTail));
  if (rest.size() < sizeof(Descriptor)) return tl::unexpected(DecodeError::too_short);
  header.descriptor = copy_once<Descriptor>(rest);
  header.has_descriptor = true;
  header.need_invalidate = (tail.flags & kNeedInvalidate) != 0;
  const std::uint64_t room = ~std::uint64_t{0} - header.descriptor.address;
  if (header.descriptor.length == 0 || header.descriptor.length != header.data_length ||
      header.descriptor.length - 1 > room)
    return tl::unexpected(DecodeError::bad_length);
  return header;
}

}  // namespace

bool is_valid_session_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxSessionName &&
         std::all_of(name.begin(), name.end(), is_session_name_character);
}

InfoRequest encode_info_request(std::string_view session_name) {
  RTRS_ENSURE(is_valid_session_name(session_name));
  InfoRequest request;
  std::copy_n(session_name.data(), session_name.size(), request.session_name.begin());
  return request;
}

Result<std::string> decode_info_request(ConstBytes bytes) {
  if (bytes.size() < sizeof(InfoRequest)) return tl::unexpected(DecodeError::too_short);
  if (bytes.size() > sizeof(InfoRequest)) return tl::unexpected(DecodeError::too_long);
  const auto request = copy_of<InfoRequest>(bytes);
  if (request.type != wire(MessageType::info_request)) return tl::unexpected(DecodeError::bad_type);

  const auto& field = request.session_name;
  // Without a NUL in the field the name has 255 characters, one more than is valid.
  std::string name(field.begin(), std::find(field.begin(), field.end(), '\0'));
  if (!is_valid_session_name(name)) return tl::unexpected(DecodeError::bad_name);
  return name;
}

std::vector<std::byte> encode_info_response(std::span<const Descriptor> descriptors) {
  RTRS_ENSURE(descriptors.size() <= std::numeric_limits<std::uint16_t>::max());
  InfoResponseHeader header;
  header.count = static_cast<std::uint16_t>(descriptors.size());
  const ConstBytes head = bytes_of(header);
  const ConstBytes body = std::as_bytes(descriptors);
  std::vector<std::byte> message;
  message.reserve(head.size() + body.size());
  message.insert(message.end(), head.begin(), head.end());
  message.insert(message.end(), body.begin(), body.end());
  return message;
}

InfoResponseHeader encode_info_refusal(int error) {
  RTRS_ENSURE(error > 0 && error <= kMaxErrnoOfInfo);
  InfoResponseHeader header;
  header.error = static_cast<std::uint32_t>(-error);
  return header;
}

int refusal_of_info_response(ConstBytes bytes) {
  if (bytes.size() != sizeof(InfoResponseHeader)) return 0;
  const auto header = copy_of<InfoResponseHeader>(bytes);
  if (header.type != wire(MessageType::info_response) || header.count != 0) return 0;
  const std::int64_t error = -std::int64_t{static_cast<std::int32_t>(header.error.value())};
  return error > 0 && error <= kMaxErrnoOfInfo ? static_cast<int>(error) : 0;
}

Result<std::vector<ChunkAddress>> decode_info_response(ConstBytes bytes, std::uint32_t queue_depth,
                                                       std::uint32_t chunk_size) {
  RTRS_ENSURE(queue_depth != 0 && chunk_size != 0);
  if (bytes.size() < sizeof(InfoResponseHeader)) return tl::unexpected(DecodeError::too_short);
  const auto header = copy_of<InfoResponseHeader>(bytes);
  if (header.type != wire(MessageType::info_response)) return tl::unexpected(DecodeError::bad_type);
  const std::size_t count = header.count;
  if (count == 0 || count > queue_depth) return tl::unexpected(DecodeError::bad_count);
  bytes = bytes.subspan(sizeof(InfoResponseHeader));
  if (bytes.size() < count * sizeof(Descriptor)) return tl::unexpected(DecodeError::too_short);
  if (bytes.size() > std::size_t{queue_depth} * sizeof(Descriptor))
    return tl::unexpected(DecodeError::too_long);

  std::vector<ChunkAddress> chunks;
  chunks.reserve(queue_depth);
  for (std::size_t i = 0; i < count; ++i) {
    const auto descriptor = copy_of<Descriptor>(bytes.subspan(i * sizeof(Descriptor)));
    const std::uint64_t address = descriptor.address;
    const std::uint32_t length = descriptor.length;
    const std::uint32_t covered = length / chunk_size;
    const bool wraps = address > std::numeric_limits<std::uint64_t>::max() - length;
    if (length == 0 || length % chunk_size != 0 || covered > queue_depth - chunks.size() || wraps)
      return tl::unexpected(DecodeError::bad_length);
    for (std::uint64_t k = 0; k < covered; ++k)
      chunks.push_back({address + k * chunk_size, descriptor.key});
  }
  if (chunks.size() != queue_depth) return tl::unexpected(DecodeError::bad_length);
  return chunks;
}

Result<RequestHeader> decode_request_header(ConstBytes chunk, std::uint32_t offset) {
  if (offset > chunk.size()) return tl::unexpected(DecodeError::too_short);
  const ConstBytes bytes = chunk.subspan(offset);
  if (bytes.size() < sizeof(WriteHeader)) return tl::unexpected(DecodeError::too_short);

  // Read and write headers begin with the same two fields.
  const auto common = copy_once<WriteHeader>(bytes);
  const std::uint16_t type = common.type;
  if (type != wire(MessageType::read) && type != wire(MessageType::write))
    return tl::unexpected(DecodeError::bad_type);

  RequestHeader header;
  header.is_read = type == wire(MessageType::read);
  header.user_length = common.user_length.value();
  if (header.user_length > offset) return tl::unexpected(DecodeError::bad_length);
  header.data_length = offset - header.user_length;
  header.user_offset = header.data_length;
  if (!header.is_read) return header;
  return add_read_fields(header, bytes.subspan(sizeof(WriteHeader)));
}

Result<RkeyMessage> decode_rkey_message(ConstBytes bytes, std::uint32_t expected_buffer) {
  if (bytes.size() < sizeof(RkeyMessage)) return tl::unexpected(DecodeError::too_short);
  const auto message = copy_of<RkeyMessage>(bytes);
  if (message.type != wire(MessageType::rkey_response))
    return tl::unexpected(DecodeError::bad_type);
  if (message.buffer_id != expected_buffer) return tl::unexpected(DecodeError::bad_value);
  return message;
}

}  // namespace rtrs::wire
