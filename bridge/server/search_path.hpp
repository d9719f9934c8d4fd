// SPDX-License-Identifier: BSD-3-Clause
// Finds a client's file by its name below a directory, and never one outside of it.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "bridge/backend/backend.hpp"
#include "rdma/owned_fd.hpp"

struct stat;

namespace rnbd {

/// Identifies the storage behind a file, independent of its name: the device number of a block
/// device, or the inode of a regular file.
struct FileIdentity {
  bool block_device = false;
  std::uint64_t device = 0;
  std::uint64_t inode = 0;  ///< 0 for block devices
  friend auto operator<=>(const FileIdentity&, const FileIdentity&) = default;
};

/// Returns false when it is neither a regular file nor a block device.
bool identify(const struct stat& status, FileIdentity& identity);

struct FoundFile {
  rtrs::OwnedFd fd;  ///< O_PATH: identifies the file without access to its contents
  FileIdentity identity;
};

/// A directory of files that clients may open by name, like `dev_search_path` of Linux servers.
///
/// Threads: any, once open.
/// Source:  openat2(2).
class SearchPath {
 public:
  /// `directory` may end with `/%SESSNAME%` or `/%IDENTITY%`. Then each client sees only one
  /// subdirectory, which has the name of its session or its proven name. `use_openat2` is true
  /// except in tests.
  ///
  /// Errors: a sentence with the remedy.
  static tl::expected<SearchPath, Failure> open(const std::string& directory,
                                                bool use_openat2 = true);

  /// Looks a name up. Symbolic links that stay below the directory are followed. May block as any
  /// file access may.
  ///
  /// Errors: ENOENT for every file that is missing or not allowed, with the reason in the text for
  ///         the server's log. Not allowed are `..`, ways out of the directory, and files of other
  ///         kinds. ENOMEM, EMFILE and the like stay.
  tl::expected<FoundFile, Failure> find(std::string_view owner, std::string_view device_name) const;

  const std::string& directory() const { return directory_; }
  /// True if each client has its own directory.
  static bool is_per_owner(const std::string& directory);
  /// True if that is by the proven name of the client.
  static bool is_per_user(const std::string& directory);

 private:
  std::string directory_;
  rtrs::OwnedFd fd_;
  bool use_openat2_ = true;
  bool per_owner_ = false;
};

/// True if `name` is allowed: it has no empty, `.` or `..` component. Slashes in front are ignored.
bool is_tame(std::string_view name);

/// True if two such names are the same path, as `a/b` and `/a//b` are.
bool is_same_file_name(std::string_view a, std::string_view b);

}  // namespace rnbd
