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
  /// Creates the directory if it does not exist.
  ///
  /// Errors: the mistake in it.
  static tl::expected<std::shared_ptr<MemberFiles>, std::string> open(const std::string& directory);

  tl::expected<std::optional<mirror::FoundMember>, rtrs::Failure> load(
      const wire::Uuid& storage) override;
  tl::expected<std::unique_ptr<mirror::MemberFile>, std::string> create(
      const wire::Uuid& storage, const std::vector<std::byte>& image) override;
  /// It stays as NAME.freed, or with a number behind that.
  mirror::Removal remove(const wire::Uuid& storage) override;
  /// It stays as NAME.dissolved.
  mirror::Removal dissolve(const wire::Uuid& storage) override;
  wire::Uuid former_group(const wire::Uuid& storage) override;
  /// Those with a record.
  std::vector<wire::Uuid> all() const;

 private:
  MemberFiles(rtrs::OwnedFd directory, std::string path)
      : directory_{std::move(directory)}, path_{std::move(path)} {}

  mirror::Removal taken_away(const std::string& name, int error) const;

  rtrs::OwnedFd directory_;
  const std::string path_;
};

}  // namespace rnbd
