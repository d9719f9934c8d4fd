// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/brick/mark.hpp"

#include <cstring>

#include "bridge/backend/brick/checksum.hpp"

namespace rnbd::brick {
namespace {

constexpr std::uint64_t kMarkMagic = 0x314B'524D'4252'4E52;  // "RNRBMRK1"

// In the byte order of this machine. It lies in one sector, which is written as a whole.
struct MarkOnDisk {
  std::uint64_t magic = kMarkMagic;
  std::array<std::uint8_t, 16> uuid{};
  std::uint64_t version = 0;
  std::uint32_t to_follow = 0;
  std::uint32_t crc = 0;  ///< of all before
};
static_assert(sizeof(MarkOnDisk) == 40);

}  // namespace

bool has_mark_room(const PartFile& tier, std::uint32_t places) {
  return tier.room() >= mark_at(places) + kMarkSize;
}

int read_mark(PartFile& tier, std::uint32_t places, std::optional<Mark>& mark) {
  mark.reset();
  if (tier.size() < mark_at(places) + kMarkSize) return 0;
  MarkOnDisk found;
  const int error = tier.read(mark_at(places), std::as_writable_bytes(std::span{&found, 1}));
  if (error != 0) return error;
  if (found.magic == kMarkMagic && found.crc == crc_before(found))
    mark = {found.uuid, found.version, found.to_follow != 0};
  return 0;
}

int write_mark(PartFile& tier, std::uint32_t places, const Mark& mark) {
  MarkOnDisk block;
  block.uuid = mark.uuid;
  block.version = mark.version;
  block.to_follow = mark.to_follow ? 1 : 0;
  block.crc = crc_before(block);
  std::array<std::byte, kMarkSize> page{};
  std::memcpy(page.data(), &block, sizeof(block));
  const int error = tier.write(mark_at(places), page);
  return error != 0 ? error : tier.sync();
}

Match match(const std::array<std::uint8_t, 16>& uuid, std::uint64_t version, bool marks,
            const std::optional<Mark>& mark) {
  if (!mark) return marks ? Match::unmarked : Match::yes;
  if (mark->uuid != uuid) return Match::stranger;
  if (mark->version == version) return Match::yes;
  if (mark->to_follow && mark->version == version + 1) return Match::yes;
  return mark->version > version ? Match::older_journal : Match::older_tier;
}

}  // namespace rnbd::brick
