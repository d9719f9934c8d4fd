// SPDX-License-Identifier: BSD-3-Clause
// Lists of exports that come page by page: LIST EXPORTS and DIRECTORY.
#include <algorithm>
#include <cstring>
#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "bridge/protocol/directory.hpp"

namespace rnbd::wire {
namespace {

/// Before each entry of LIST EXPORTS.
struct EntryHeader {
  le16 name_length = 0;
  le16 description_length = 0;
};
static_assert(sizeof(EntryHeader) == 4);

bool is_text(std::string_view text) {
  const auto is_plain = [](char c) {
    return (c >= ' ' && c != '\x7F') || c == '\n' || c == '\t' || (c & '\x80') != 0;
  };
  return std::all_of(text.begin(), text.end(), is_plain);
}

void append_bytes(std::vector<std::byte>& message, ConstBytes bytes) {
  message.insert(message.end(), bytes.begin(), bytes.end());
}

void append_text(std::vector<std::byte>& message, std::string_view text) {
  append_bytes(message, std::as_bytes(std::span{text.data(), text.size()}));
}

std::string take_text(ConstBytes& bytes, std::size_t length) {
  const ConstBytes taken = bytes.first(length);
  bytes = bytes.subspan(length);
  return {reinterpret_cast<const char*>(taken.data()), taken.size()};
}

EntryHeader head_of(const ExportName&) { return {}; }
DirectoryEntryHead head_of(const DirectoryEntry& entry) {
  DirectoryEntryHead head;
  head.size = entry.size;
  head.uuid = entry.uuid;
  head.flags = (entry.may_write ? kDirectoryMayWrite : 0U) | (entry.in_use ? kDirectoryInUse : 0U) |
               (entry.waiting ? kDirectoryWaiting : 0U) |
               (entry.kind == DirectoryKind::referral ? kDirectoryElsewhere : 0U) |
               (entry.kind == DirectoryKind::path ? kDirectoryAddress : 0U);
  return head;
}

ExportName entry_of(const EntryHeader&) { return {}; }
DirectoryEntry entry_of(const DirectoryEntryHead& head) {
  DirectoryEntry entry;
  entry.size = head.size;
  entry.uuid = head.uuid;
  entry.may_write = (head.flags & kDirectoryMayWrite) != 0;
  entry.in_use = (head.flags & kDirectoryInUse) != 0;
  entry.waiting = (head.flags & kDirectoryWaiting) != 0;
  if ((head.flags & kDirectoryElsewhere) != 0) entry.kind = DirectoryKind::referral;
  if ((head.flags & kDirectoryAddress) != 0) entry.kind = DirectoryKind::path;
  return entry;
}

template <class Response, class Entry>
std::vector<std::byte> encode_page(MessageType type, const std::vector<Entry>& all,
                                   std::uint32_t first, std::size_t capacity) {
  Response page;
  page.header = header_of(type);
  page.total = static_cast<std::uint32_t>(all.size());
  std::vector<std::byte> message;
  append_bytes(message, rtrs::wire::bytes_of(page));
  std::uint32_t count = 0;
  for (std::size_t i = first; i < all.size(); ++i) {
    auto head = head_of(all[i]);
    std::string_view description = all[i].description;
    const std::size_t needed = message.size() + sizeof(head) + all[i].name.size();
    if (needed > capacity) break;
    // Only the first entry of a page may lose text: the others have a page of their own to come.
    const std::size_t room =
        std::min<std::size_t>(capacity - needed, std::numeric_limits<std::uint16_t>::max());
    if (description.size() > room && count > 0) break;
    description = description.substr(0, room);
    head.name_length = static_cast<std::uint16_t>(all[i].name.size());
    head.description_length = static_cast<std::uint16_t>(description.size());
    append_bytes(message, rtrs::wire::bytes_of(head));
    append_text(message, all[i].name);
    append_text(message, description);
    ++count;
  }
  page.count = count;
  std::memcpy(message.data(), &page, sizeof(page));
  return message;
}

/// Takes one entry from the front of `bytes`.
template <class Head>
auto take_entry(ConstBytes& bytes) -> Result<decltype(entry_of(Head{}))> {
  if (bytes.size() < sizeof(Head)) return tl::unexpected(DecodeError::too_short);
  const auto head = rtrs::wire::copy_of<Head>(bytes);
  bytes = bytes.subspan(sizeof(Head));
  const std::size_t name_length = head.name_length;
  const std::size_t description_length = head.description_length;
  if (name_length == 0 || name_length > kMaxDeviceName ||
      name_length + description_length > bytes.size())
    return tl::unexpected(DecodeError::bad_length);
  auto entry = entry_of(head);
  entry.name = take_text(bytes, name_length);
  entry.description = take_text(bytes, description_length);
  if (!is_valid_device_name(entry.name) || !is_text(entry.description))
    return tl::unexpected(DecodeError::bad_name);
  return entry;
}

/// Returns the number of all entries, and appends this page's to `entries`.
template <class Response, class Head, class Entry>
Result<std::uint32_t> decode_page(ConstBytes bytes, MessageType type, std::vector<Entry>& entries) {
  const auto page = decode<Response>(bytes, type);
  if (!page) return tl::unexpected(page.error());
  bytes = bytes.subspan(sizeof(Response));
  const std::size_t count = page->count;
  // Counted before anything is allocated: the smallest entry has a name of one byte.
  if (count > page->total || count > bytes.size() / (sizeof(Head) + 1))
    return tl::unexpected(DecodeError::bad_count);
  entries.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto entry = take_entry<Head>(bytes);
    if (!entry) return tl::unexpected(entry.error());
    entries.push_back(*std::move(entry));
  }
  return std::uint32_t{page->total};
}

}  // namespace

std::vector<std::byte> encode_export_page(const std::vector<ExportName>& all, std::uint32_t first,
                                          std::size_t capacity) {
  return encode_page<ListExportsResponse>(MessageType::list_exports_response, all, first, capacity);
}

Result<ExportPage> decode_export_page(ConstBytes bytes) {
  ExportPage page;
  const auto total = decode_page<ListExportsResponse, EntryHeader>(
      bytes, MessageType::list_exports_response, page.exports);
  if (!total) return tl::unexpected(total.error());
  page.total = *total;
  return page;
}

Result<Directory> decode_directory(ConstBytes bytes) {
  auto question = decode<Directory>(bytes, MessageType::directory);
  if (question || question.error() != DecodeError::too_short) return question;
  const auto older = decode<ListExports>(bytes, MessageType::directory);
  if (!older) return tl::unexpected(older.error());
  Directory exports{older->header};
  exports.first = older->first;
  return exports;
}

std::vector<std::byte> encode_directory_page(const std::vector<DirectoryEntry>& all,
                                             std::uint32_t first, std::size_t capacity) {
  return encode_page<DirectoryResponse>(MessageType::directory_response, all, first, capacity);
}

Result<DirectoryPage> decode_directory_page(ConstBytes bytes) {
  DirectoryPage page;
  const auto total = decode_page<DirectoryResponse, DirectoryEntryHead>(
      bytes, MessageType::directory_response, page.entries);
  if (!total) return tl::unexpected(total.error());
  page.total = *total;
  return page;
}

}  // namespace rnbd::wire
