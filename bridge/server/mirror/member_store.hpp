// SPDX-License-Identifier: BSD-3-Clause
// The store of members' records, which outlive their server.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/server/mirror/member_image.hpp"
#include "rdma/failure.hpp"

namespace rnbd::mirror {

/// The parts that must become durable together. The head follows the first pages, so that a view
/// never stands there without the regions that its absent members lack. The rest may follow at any
/// time. A new record, and one whose pages get other places, is written as a whole.
struct Save {
  std::vector<std::byte> whole;  ///< in place of all others; empty: parts only
  std::vector<Patch> first;
  std::optional<Patch> head;
  std::vector<Patch> rest;
};

/// One member's record.
///
/// Threads: one at a time.
class MemberFile {
 public:
  virtual ~MemberFile() = default;
  /// Durable when it returns, `rest` perhaps later. May block.
  ///
  /// Errors: the obstacle, with the file's name; then each part may be saved or not.
  virtual tl::expected<void, std::string> write(const Save& save) = 0;
};

struct FoundMember {
  LoadedImage image;
  std::unique_ptr<MemberFile> file;
};

/// The outcome for a record that was to be written as a whole.
struct Creation {
  /// Null: the record of before is in its place, if there was one.
  std::unique_ptr<MemberFile> file{};
  std::string trouble{};  ///< why it is not durable; "": it is
};

/// The outcome for a record that was to be taken away.
struct Removal {
  bool gone = false;      ///< it is no record any more
  std::string trouble{};  ///< why it is still there, or may be there again after a loss of power
};

/// Threads: any.
class MemberStore {
 public:
  virtual ~MemberStore() = default;
  /// Returns none if this storage is no member. May block.
  ///
  /// Errors: EBADMSG (a record that is damaged); else the obstacle to knowing it, which may pass.
  virtual tl::expected<std::optional<FoundMember>, rtrs::Failure> load(
      const wire::Uuid& storage) = 0;
  /// Durable when it returns, unless there is trouble. Takes the place of an older record. May
  /// block.
  virtual Creation create(const wire::Uuid& storage, const std::vector<std::byte>& image) = 0;
  /// Takes the record away, durably unless there is trouble. A copy of it may stay for people. May
  /// block.
  virtual Removal remove(const wire::Uuid& storage) = 0;
  /// The same, as its mirror is over. former_group() tells the group from then on, until there is
  /// another record, or remove().
  virtual Removal dissolve(const wire::Uuid& storage) = 0;
  /// That of a mirror which was dissolved into this storage; all zeros: none. May block.
  virtual wire::Uuid former_group(const wire::Uuid& storage) = 0;
};

}  // namespace rnbd::mirror
