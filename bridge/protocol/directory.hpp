// SPDX-License-Identifier: BSD-3-Clause
// DIRECTORY: the exports of a server with size, rights and state, without opening one of them.
// Source: docs/protocol.md, RNBD extension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bridge/protocol/messages.hpp"

namespace rnbd::wire {

/// `first`: index of the first entry wanted.
struct Directory {
  Header header;
  le32 first = 0;
};
static_assert(sizeof(Directory) == 8);

/// Followed by `count` entries: DirectoryEntryHead, name, description.
struct DirectoryResponse {
  Header header;
  le32 total = 0;
  le32 count = 0;
};
static_assert(sizeof(DirectoryResponse) == 12 && offsetof(DirectoryResponse, count) == 8);

struct DirectoryEntryHead {
  le64 size = 0;  ///< bytes; 0 while it waits for its storage
  Uuid uuid{};    ///< of the storage; zeros: unknown
  le32 flags = 0;
  le16 name_length = 0;
  le16 description_length = 0;
};
static_assert(sizeof(DirectoryEntryHead) == 32 && offsetof(DirectoryEntryHead, flags) == 24);

inline constexpr std::uint32_t kDirectoryMayWrite = 1;  ///< the asking session may
inline constexpr std::uint32_t kDirectoryInUse = 2;     ///< somebody may write to it now
inline constexpr std::uint32_t kDirectoryWaiting = 4;   ///< its storage is not there

struct DirectoryEntry {
  std::string name;
  std::string description;
  std::uint64_t size = 0;  ///< bytes
  Uuid uuid{};
  bool may_write = false;
  bool in_use = false;
  bool waiting = false;
  friend bool operator==(const DirectoryEntry&, const DirectoryEntry&) = default;
};

struct DirectoryPage {
  std::uint32_t total = 0;
  std::vector<DirectoryEntry> entries;
};

/// As many entries from `first` on as fit into `capacity` bytes; names must be valid. A page with
/// room for a name is never empty before the end: a long description is cut instead.
std::vector<std::byte> encode_directory_page(const std::vector<DirectoryEntry>& all,
                                             std::uint32_t first, std::size_t capacity);

/// An empty page means that there is no more. Ignores bytes after the last entry, and flags that it
/// does not know.
///
/// Errors: too_short, bad_type, bad_length, bad_count, bad_name.
Result<DirectoryPage> decode_directory_page(ConstBytes bytes);

}  // namespace rnbd::wire
