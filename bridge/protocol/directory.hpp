// SPDX-License-Identifier: BSD-3-Clause
// DIRECTORY: the exports of a server with size, rights and state, without opening one of them; and
// where else clients may go.
// Source: docs/protocol.md, RNBD extension.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bridge/protocol/messages.hpp"

namespace rnbd::wire {

/// Kinds of entries, in their order in the directory.
inline constexpr std::uint32_t kDirectoryExports = 1;
inline constexpr std::uint32_t kDirectoryReferrals = 2;  ///< exports that another server has
inline constexpr std::uint32_t kDirectoryPaths = 4;      ///< addresses of this server

/// `first`: index of the first entry wanted, among those of the kinds that are.
struct Directory {
  Header header;
  le32 first = 0;
  le32 kinds = kDirectoryExports;  ///< missing in older versions, which know exports only
};
static_assert(sizeof(Directory) == 12 && offsetof(Directory, kinds) == 8);

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

inline constexpr std::uint32_t kDirectoryMayWrite = 1;   ///< the asking session may
inline constexpr std::uint32_t kDirectoryInUse = 2;      ///< somebody may write to it now
inline constexpr std::uint32_t kDirectoryWaiting = 4;    ///< its storage is not there
inline constexpr std::uint32_t kDirectoryElsewhere = 8;  ///< it is a referral
inline constexpr std::uint32_t kDirectoryAddress = 16;   ///< it is an address of the server

enum class DirectoryKind : std::uint8_t { exported, referral, path };

struct DirectoryEntry {
  std::string name;         ///< of a path: its address
  std::string description;  ///< of a referral: the URI
  std::uint64_t size = 0;   ///< bytes
  Uuid uuid{};
  bool may_write = false;
  bool in_use = false;
  bool waiting = false;
  DirectoryKind kind = DirectoryKind::exported;
  friend bool operator==(const DirectoryEntry&, const DirectoryEntry&) = default;
};

struct DirectoryPage {
  std::uint32_t total = 0;
  std::vector<DirectoryEntry> entries;
};

/// The question of older versions, which has no kinds, is about exports.
///
/// Errors: too_short, bad_type.
Result<Directory> decode_directory(ConstBytes bytes);

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
