// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/messages.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "rdma/wire/ensure.hpp"

namespace rnbd::wire {
namespace {

/// Precedes every name in a page of exports.
struct EntryHeader {
  le16 name_length;
  le16 description_length;
};
static_assert(sizeof(EntryHeader) == 4);

bool is_control(char c) { return (c >= '\0' && c < ' ') || c == '\x7F'; }

bool is_printable_text(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return !is_control(c) || c == '\n' || c == '\t'; });
}

template <class T>
void append(std::vector<std::byte>& message, const T& part) {
  const ConstBytes bytes = rtrs::wire::bytes_of(part);
  message.insert(message.end(), bytes.begin(), bytes.end());
}

void append(std::vector<std::byte>& message, std::string_view text) {
  const ConstBytes bytes = std::as_bytes(std::span{text.data(), text.size()});
  message.insert(message.end(), bytes.begin(), bytes.end());
}

std::string text_of(ConstBytes bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Takes one entry from the front of `bytes`.
Result<ExportName> take_entry(ConstBytes& bytes) {
  if (bytes.size() < sizeof(EntryHeader)) return tl::unexpected(DecodeError::too_short);
  const auto header = rtrs::wire::copy_of<EntryHeader>(bytes);
  bytes = bytes.subspan(sizeof(EntryHeader));
  const std::size_t name_length = header.name_length;
  const std::size_t description_length = header.description_length;
  if (name_length == 0 || name_length > kMaxDeviceName ||
      name_length + description_length > bytes.size())
    return tl::unexpected(DecodeError::bad_length);
  ExportName entry{text_of(bytes.first(name_length)),
                   text_of(bytes.subspan(name_length, description_length))};
  bytes = bytes.subspan(name_length + description_length);
  if (!is_valid_device_name(entry.name) || !is_printable_text(entry.description))
    return tl::unexpected(DecodeError::bad_name);
  return entry;
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

std::vector<std::byte> encode_export_page(const std::vector<ExportName>& all, std::uint32_t first,
                                          std::size_t capacity) {
  ListExportsResponse page;
  page.header = header_of(MessageType::list_exports_response);
  page.total = static_cast<std::uint32_t>(all.size());
  std::vector<std::byte> message;
  append(message, page);
  std::uint32_t count = 0;
  for (std::size_t i = first; i < all.size(); ++i) {
    const std::string_view name = all[i].name;
    std::string_view description = all[i].description;
    const std::size_t needed = message.size() + sizeof(EntryHeader) + name.size();
    if (needed > capacity) break;
    // Only the first entry of a page may lose text: the others have a page of their own to come.
    const std::size_t room =
        std::min<std::size_t>(capacity - needed, std::numeric_limits<std::uint16_t>::max());
    if (description.size() > room && count > 0) break;
    description = description.substr(0, room);
    append(message, EntryHeader{static_cast<std::uint16_t>(name.size()),
                                static_cast<std::uint16_t>(description.size())});
    append(message, name);
    append(message, description);
    ++count;
  }
  page.count = count;
  std::memcpy(message.data(), &page, sizeof(page));
  return message;
}

Result<ExportPage> decode_export_page(ConstBytes bytes) {
  const auto head = decode<ListExportsResponse>(bytes, MessageType::list_exports_response);
  if (!head) return tl::unexpected(head.error());
  bytes = bytes.subspan(sizeof(ListExportsResponse));
  const std::size_t count = head->count;
  // Counted before anything is allocated: the smallest entry has a name of one byte.
  if (count > head->total || count > bytes.size() / (sizeof(EntryHeader) + 1))
    return tl::unexpected(DecodeError::bad_count);

  ExportPage page;
  page.total = head->total;
  page.exports.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto entry = take_entry(bytes);
    if (!entry) return tl::unexpected(entry.error());
    page.exports.push_back(*std::move(entry));
  }
  return page;
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
