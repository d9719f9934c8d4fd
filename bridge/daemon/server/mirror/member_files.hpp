// SPDX-License-Identifier: BSD-3-Clause
// The records of members of mirror groups, one file for each in the state directory.
#pragma once

#include <memory>
#include <string>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

#include "bridge/server/mirror/member_store.hpp"
#include "rdma/owned_fd.hpp"

namespace rnbd {

/// Only the server that has the storage open for writing changes its file.
class MemberFiles final : public mirror::MemberStore {
 public:
  enum class Keep : std::uint8_t {
    open,    ///< a record's file, for its next change
    closed,  ///< open it for each change: where there are many, each rarely changed
  };
  /// Creates the directory if it does not exist.
  ///
  /// Errors: the mistake in it.
  static tl::expected<std::shared_ptr<MemberFiles>, std::string> open(const std::string& directory,
                                                                      Keep keep = Keep::open);

  tl::expected<std::optional<mirror::FoundMember>, rtrs::Failure> load(
      const wire::Uuid& storage) override;
  mirror::Creation create(const wire::Uuid& storage, const std::vector<std::byte>& image) override;
  /// It stays as NAME.freed, or with a number behind that.
  mirror::Removal remove(const wire::Uuid& storage) override;
  /// It stays as NAME.dissolved.
  mirror::Removal dissolve(const wire::Uuid& storage) override;
  wire::Uuid former_group(const wire::Uuid& storage) override;
  /// Those with a record. Errors: the obstacle to knowing them all.
  tl::expected<std::vector<wire::Uuid>, std::string> all() const;

 private:
  MemberFiles(rtrs::OwnedFd directory, std::string path, Keep keep)
      : directory_{std::move(directory)}, path_{std::move(path)}, keep_{keep} {}

  std::unique_ptr<mirror::MemberFile> file_of(const std::string& name, rtrs::OwnedFd file) const;
  mirror::Removal taken_away(const std::string& name, int error) const;

  rtrs::OwnedFd directory_;
  const std::string path_;
  const Keep keep_;
};

}  // namespace rnbd
