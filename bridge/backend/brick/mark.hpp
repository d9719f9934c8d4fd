// SPDX-License-Identifier: BSD-3-Clause
// The mark of a tier, behind its last place: it tells to which journal the tier belongs, and to
// which version of it. A journal gives each of its versions to the mark, so two files that were not
// left together do not match.
//
//   1  the mark has the next version, and says that the journal is still to follow
//   2  the journal has it
//   3  the mark has it
//
// Nothing else changes before 3 is durable. After a crash behind 1 the journal is one version
// behind, and both still match.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "bridge/backend/brick/part_file.hpp"
#include "bridge/backend/brick/types.hpp"

namespace rnbd::brick {

struct Mark {
  std::array<std::uint8_t, 16> uuid{};  ///< of the journal
  std::uint64_t version = 0;            ///< likewise
  bool to_follow = false;               ///< the journal may be one version behind
};

/// How a journal and a tier match.
enum class Match : std::uint8_t { yes, unmarked, stranger, older_journal, older_tier };

constexpr std::uint64_t kMarkSize = 4096;  ///< bytes

constexpr std::uint64_t mark_at(std::uint32_t places) { return places * kBlockSize; }

/// False: a block device that ends behind its last place.
bool has_mark_room(const PartFile& tier, std::uint32_t places);
/// Stores none if the tier has none. Errors: those of the file.
int read_mark(PartFile& tier, std::uint32_t places, std::optional<Mark>& mark);
/// Durable when it returns 0. Errors: likewise.
int write_mark(PartFile& tier, std::uint32_t places, const Mark& mark);

/// `marks`: the journal has given its version to a tier, which older servers did not.
Match match(const std::array<std::uint8_t, 16>& uuid, std::uint64_t version, bool marks,
            const std::optional<Mark>& mark);

}  // namespace rnbd::brick
