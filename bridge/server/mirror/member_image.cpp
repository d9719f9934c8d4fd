// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/mirror/member_image.hpp"

#include <algorithm>
#include <array>
#include <boost/crc.hpp>
#include <cerrno>
#include <cstring>

namespace rnbd::mirror {
namespace {

using rtrs::wire::le32;
using rtrs::wire::le64;

constexpr std::size_t kHeadSize = 4096;
constexpr std::size_t kPageSize = 512;
constexpr std::size_t kWordsPerPage = kRegionsPerPage / 64;
constexpr std::array<char, 8> kMagic{'R', 'N', 'B', 'D', 'M', 'E', 'M', 'B'};
constexpr std::uint32_t kVersion = 2;
/// It has zeros for the disk, the beat and the pedigree.
constexpr std::uint32_t kOldestVersion = 1;

struct Head {
  std::array<char, 8> magic = kMagic;
  le32 crc = 0;  ///< of the whole head, with 0 here
  le32 version = kVersion;
  le64 sequence = 0;
  wire::Uuid group{};
  wire::Uuid claimant{};
  std::uint8_t member = 0;
  std::uint8_t members = 0;
  std::uint8_t region_shift = 0;
  std::uint8_t last_views = 0;
  le32 reserved = 0;
  le64 size = 0;
  le64 promised = 0;
  le64 whole_epoch = 0;
  wire::MirrorViewFields view;
  wire::MirrorViewFields confirmed;
  std::array<wire::MirrorViewFields, kMaxLastViews> history{};
  le64 disk = 0;
  le32 beat = 0;
  le32 reserved2 = 0;
  wire::MirrorPedigree pedigree{};
};
static_assert(offsetof(Head, group) == 24 && offsetof(Head, size) == 64);
static_assert(offsetof(Head, disk) == 248 && sizeof(Head) == 648 && sizeof(Head) <= kHeadSize);

struct Page {
  std::array<le64, kWordsPerPage> words{};
  le32 place = 0;  ///< the page's number in the file
  le32 crc = 0;    ///< of all before
};
static_assert(sizeof(Page) == kPageSize);

std::uint32_t crc_of(const void* bytes, std::size_t size) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes, size);
  return crc.checksum();
}

std::size_t place_of(const wire::MirrorShape& shape, unsigned map, std::size_t page) {
  return map * pages_of(shape) + page;
}

std::uint64_t offset_of(std::size_t place) { return 2 * kHeadSize + place * kPageSize; }

Page page_with(const RegionMap& map, std::size_t page, std::size_t place) {
  Page made;
  const std::size_t first = page * kWordsPerPage;
  const std::size_t count = std::min(kWordsPerPage, map.words().size() - first);
  for (std::size_t i = 0; i < count; ++i) made.words[i] = map.words()[first + i];
  made.place = static_cast<std::uint32_t>(place);
  made.crc = crc_of(&made, offsetof(Page, crc));
  return made;
}

/// False: it is torn, or lacks.
bool take_page(wire::ConstBytes image, std::size_t page, std::size_t place, RegionMap& map) {
  Page found;
  bool whole = offset_of(place) + kPageSize <= image.size();
  if (whole) std::memcpy(&found, image.data() + offset_of(place), kPageSize);
  whole = whole && found.place == place && found.crc == crc_of(&found, offsetof(Page, crc));
  const std::size_t first = page * kWordsPerPage;
  const std::size_t end = std::min(first + kWordsPerPage, map.words().size());
  for (std::size_t i = first; i < end; ++i)
    map.set_word(i, whole ? found.words[i - first].value() : ~std::uint64_t{0});
  return whole;
}

std::optional<Head> take_head(wire::ConstBytes image, unsigned which) {
  if (image.size() < 2 * kHeadSize) return {};
  std::array<std::byte, kHeadSize> bytes;
  std::memcpy(bytes.data(), image.data() + which * kHeadSize, kHeadSize);
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  std::memset(bytes.data() + offsetof(Head, crc), 0, sizeof(head.crc));
  if (head.magic != kMagic || head.crc != crc_of(bytes.data(), kHeadSize)) return {};
  if (head.sequence % 2 != which) return {};
  return head;
}

/// Its checksum is right, so only another version could write impossible values. A vote's disk has
/// no bytes, and so no maps.
bool is_understood(const Head& head) {
  if (head.version < kOldestVersion || head.version > kVersion) return false;
  if (head.last_views > kMaxLastViews) return false;
  if (head.members == 0 || head.members > kMaxMembers) return false;
  const bool is_vote = head.size == 0;
  if (is_vote ? head.member != kVote || head.members == kMaxMembers : head.member >= head.members)
    return false;
  if (head.region_shift < wire::kMinRegionShift || head.region_shift > wire::kMaxRegionShift)
    return false;
  if (head.size >> head.region_shift >= wire::kMaxGrownRegions) return false;
  return wire::decode_view(head.view, head.members).has_value() &&
         wire::decode_view(head.confirmed, head.members).has_value();
}

MemberState state_of(const Head& head) {
  MemberState state;
  state.group = head.group;
  state.claimant = head.claimant;
  state.shape = {head.member, head.members, head.region_shift, head.size};
  state.record =
      MemberRecord::first(head.member, head.members, state.shape.size, state.shape.region_bytes());
  state.record.promised = head.promised;
  state.record.whole_epoch = head.whole_epoch;
  state.record.view = *wire::decode_view(head.view, head.members);
  state.record.confirmed = *wire::decode_view(head.confirmed, head.members);
  for (unsigned i = 0; i < head.last_views; ++i)
    state.last_views.push_back({head.history[i].term, head.history[i].seq});
  state.record.disk = head.disk;
  state.record.beat = head.beat;
  state.record.pedigree = wire::decode_pedigree(head.pedigree);
  return state;
}

RegionMap& map_of(MemberRecord& record, unsigned map) {
  return map == 0 ? record.maps.active : record.maps.dirty[map - 1];
}

}  // namespace

const RegionMap& map_of(const MemberRecord& record, unsigned map) {
  return map == 0 ? record.maps.active : record.maps.dirty[map - 1];
}

std::size_t pages_of(const wire::MirrorShape& shape) {
  return (shape.regions() + kRegionsPerPage - 1) / kRegionsPerPage;
}

MemberState new_member(const wire::Uuid& group, const wire::MirrorShape& shape) {
  MemberState state;
  state.group = group;
  state.shape = shape;
  state.record = MemberRecord::first(shape.member, shape.members, shape.size, shape.region_bytes());
  return state;
}

void remember_view(MemberState& state, const ViewId& view) {
  if (!state.last_views.empty() && state.last_views.front() == view) return;
  state.last_views.insert(state.last_views.begin(), view);
  if (state.last_views.size() > kMaxLastViews) state.last_views.pop_back();
}

Patch head_patch(const MemberState& about, const MemberRecord& record, std::uint64_t sequence) {
  Head head;
  head.sequence = sequence;
  head.group = about.group;
  head.claimant = about.claimant;
  head.member = static_cast<std::uint8_t>(about.shape.member);
  head.members = static_cast<std::uint8_t>(about.shape.members);
  head.region_shift = static_cast<std::uint8_t>(about.shape.region_shift);
  head.size = about.shape.size;
  head.promised = record.promised;
  head.whole_epoch = record.whole_epoch;
  head.view = wire::encode_view(record.view);
  head.confirmed = wire::encode_view(record.confirmed);
  head.last_views = static_cast<std::uint8_t>(about.last_views.size());
  for (std::size_t i = 0; i < about.last_views.size(); ++i)
    head.history[i] = wire::encode_view({about.last_views[i], 0});
  head.disk = record.disk;
  head.beat = record.beat;
  head.pedigree = wire::encode_pedigree(record.pedigree);
  Patch patch{sequence % 2 * kHeadSize, std::vector<std::byte>(kHeadSize)};
  std::memcpy(patch.bytes.data(), &head, sizeof(head));
  head.crc = crc_of(patch.bytes.data(), kHeadSize);
  std::memcpy(patch.bytes.data() + offsetof(Head, crc), &head.crc, sizeof(head.crc));
  return patch;
}

Patch page_patch(const wire::MirrorShape& shape, const MemberRecord& record, unsigned map,
                 std::size_t page) {
  const std::size_t place = place_of(shape, map, page);
  const Page made = page_with(map_of(record, map), page, place);
  Patch patch{offset_of(place), std::vector<std::byte>(kPageSize)};
  std::memcpy(patch.bytes.data(), &made, kPageSize);
  return patch;
}

std::vector<std::byte> whole_image(const MemberState& state, std::uint64_t sequence) {
  std::vector<std::byte> image(offset_of(place_of(state.shape, maps_of(state.shape), 0)));
  const auto lay = [&image](const Patch& patch) {
    std::ranges::copy(patch.bytes, image.begin() + static_cast<std::ptrdiff_t>(patch.offset));
  };
  lay(head_patch(state, state.record, sequence));
  for (unsigned map = 0; map < maps_of(state.shape); ++map) {
    for (std::size_t page = 0; page < pages_of(state.shape); ++page)
      lay(page_patch(state.shape, state.record, map, page));
  }
  return image;
}

tl::expected<LoadedImage, rtrs::Failure> load_image(wire::ConstBytes image) {
  const std::optional<Head> heads[] = {take_head(image, 0), take_head(image, 1)};
  const bool second = heads[1] && (!heads[0] || heads[1]->sequence > heads[0]->sequence);
  const std::optional<Head>& head = heads[second ? 1 : 0];
  if (!head) return tl::unexpected(rtrs::Failure{EBADMSG, "is damaged"});
  if (!is_understood(*head))
    return tl::unexpected(rtrs::Failure{EOPNOTSUPP, "is of another version of this server"});
  LoadedImage loaded{state_of(*head), head->sequence, 0};
  MemberRecord& record = loaded.state.record;
  for (unsigned map = 0; map < maps_of(loaded.state.shape); ++map) {
    for (std::size_t page = 0; page < pages_of(loaded.state.shape); ++page) {
      const std::size_t place = place_of(loaded.state.shape, map, page);
      if (!take_page(image, page, place, map_of(record, map))) ++loaded.torn;
    }
  }
  // Cleared behind the view that says so, in their own time.
  for (unsigned k = 0; k < record.members; ++k)
    if (has(record.view.set, k)) record.maps.dirty[k].clear();
  return loaded;
}

}  // namespace rnbd::mirror
