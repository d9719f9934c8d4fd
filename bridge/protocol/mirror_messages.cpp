// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/mirror_messages.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace rnbd::wire {
namespace {

template <class T>
void put(std::vector<std::byte>& message, std::size_t offset, const T& part) {
  std::memcpy(message.data() + offset, &part, sizeof(part));
}

/// A message that older peers send without its last fields, which are zeros then.
template <class T>
Result<T> decode_any(ConstBytes bytes, MessageType type, std::size_t oldest) {
  if (bytes.size() < oldest) return tl::unexpected(DecodeError::too_short);
  std::array<std::byte, sizeof(T)> whole{};
  std::copy_n(bytes.begin(), std::min(bytes.size(), whole.size()), whole.begin());
  return decode<T>(whole, type);
}

std::uint32_t end_of_run(const mirror::RegionMap& map, std::uint32_t first) {
  while (map.contains(first)) ++first;
  return first;
}

/// Each run begins behind the one before it, with a gap, and ends at `end` at the latest.
bool are_valid(const std::vector<MirrorRun>& runs, std::uint64_t from, std::uint32_t end) {
  for (const MirrorRun& run : runs) {
    const std::uint32_t first = run.first;
    if (first < from || first >= end || run.count == 0 || run.count > end - first) return false;
    from = std::uint64_t{first} + run.count + 1;
  }
  return true;
}

Result<std::vector<MirrorRun>> take_runs(ConstBytes bytes, std::size_t count) {
  if (count > bytes.size() / sizeof(MirrorRun)) return tl::unexpected(DecodeError::bad_count);
  std::vector<MirrorRun> runs;
  runs.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    runs.push_back(rtrs::wire::copy_of<MirrorRun>(bytes.subspan(i * sizeof(MirrorRun))));
  return runs;
}

/// The number of a disk of the group, or of its vote.
bool is_number(unsigned member, unsigned disks, bool is_vote) {
  if (disks < 1 || disks > mirror::kMaxMembers) return false;
  return is_vote ? member == mirror::kVote && disks < mirror::kMaxMembers : member < disks;
}

/// A member has promised the terms of all views that it knows of, and every record has a disk.
bool is_possible(const mirror::Claimed& claimed) {
  const auto knows = [&](const mirror::ViewId& view) { return view.term <= claimed.promised; };
  return claimed.disk != 0 && knows(claimed.view.id) && knows(claimed.confirmed.id) &&
         std::ranges::all_of(claimed.pedigree,
                             [&](const mirror::Holder& holder) { return knows(holder.age.view); });
}

}  // namespace

unsigned region_shift_of(std::uint64_t size) {
  unsigned shift = 20;
  while (size >> shift >= kMaxMirrorRegions) ++shift;
  return shift;
}

MirrorShape shape_of(const MirrorClaim& claim) {
  return {claim.member, claim.members, claim.region_shift, claim.size};
}

Result<MirrorView> decode_view_message(ConstBytes bytes) {
  return decode_any<MirrorView>(bytes, kMirrorView, kOldestMirrorView);
}

Result<MirrorClaim> decode_claim(ConstBytes bytes) {
  const auto claim = decode_any<MirrorClaim>(bytes, kMirrorClaim, kOldestMirrorClaim);
  if (!claim) return tl::unexpected(claim.error());
  const bool is_vote = claim->kind == MemberKind::vote;
  if (!is_number(claim->member, claim->members, is_vote))
    return tl::unexpected(DecodeError::bad_count);
  if (claim->term == 0 || claim->group == Uuid{} || claim->claimant == Uuid{} ||
      claim->kind > MemberKind::vote)
    return tl::unexpected(DecodeError::bad_value);
  const bool fits =
      claim->region_shift >= kMinRegionShift && claim->region_shift <= kMaxRegionShift;
  const std::uint32_t most = claim->base != 0 ? kMaxGrownRegions : kMaxMirrorRegions;
  if (!fits || (claim->size == 0) != is_vote || claim->size >> claim->region_shift >= most)
    return tl::unexpected(DecodeError::bad_length);
  if (claim->base > claim->size) return tl::unexpected(DecodeError::bad_length);
  return *claim;
}

Result<std::vector<std::uint64_t>> decode_claimed_disks(ConstBytes bytes) {
  const auto claim = decode<MirrorVoteClaim>(bytes, kMirrorClaim);
  if (!claim) return tl::unexpected(claim.error());
  std::vector<std::uint64_t> disks;
  for (const le64& disk : claim->disks)
    if (disk != 0) disks.push_back(disk);
  return disks;
}

MirrorViewFields encode_view(const mirror::View& view) {
  MirrorViewFields fields;
  fields.term = view.id.term;
  fields.seq = view.id.seq;
  fields.set = view.set;
  return fields;
}

Result<mirror::View> decode_view(const MirrorViewFields& fields, unsigned members) {
  const mirror::View view{{fields.term, fields.seq}, fields.set};
  const mirror::MemberSet disks = mirror::disks_of(view.set, members);
  if (disks == 0 ||
      mirror::without(view.set, mirror::kVote) != mirror::without(disks, mirror::kVote))
    return tl::unexpected(DecodeError::bad_value);
  return view;
}

MirrorPedigree encode_pedigree(const mirror::Pedigree& pedigree) {
  MirrorPedigree fields{};
  for (std::size_t k = 0; k < std::min(pedigree.size(), fields.size()); ++k) {
    const mirror::Holder& holder = pedigree[k];
    fields[k].disk = holder.disk;
    fields[k].term = holder.age.view.term;
    fields[k].seq = holder.age.view.seq;
    fields[k].beat = holder.age.beat;
  }
  return fields;
}

mirror::Pedigree decode_pedigree(const MirrorPedigree& fields) {
  mirror::Pedigree pedigree;
  for (const MirrorHolder& holder : fields)
    pedigree.push_back({holder.disk, {{holder.term, holder.seq}, holder.beat}});
  return pedigree;
}

Result<mirror::Pedigree> take_pedigree(ConstBytes& data) {
  if (data.size() < sizeof(MirrorPedigree)) return tl::unexpected(DecodeError::too_short);
  const auto fields = rtrs::wire::copy_of<MirrorPedigree>(data);
  data = data.subspan(sizeof(fields));
  return decode_pedigree(fields);
}

MirrorClaimResponse encode_claimed(const mirror::Claimed& answer, unsigned member,
                                   unsigned members) {
  MirrorClaimResponse message;
  message.header = header_of(kMirrorClaimResponse);
  message.member = static_cast<std::uint8_t>(member);
  message.members = static_cast<std::uint8_t>(members);
  if (answer.lost_power) message.flags |= kMirrorLostPower;
  if (answer.pulls) message.flags |= kMirrorPulls;
  message.promised = answer.promised;
  message.view = encode_view(answer.view);
  message.confirmed = encode_view(answer.confirmed);
  message.active = answer.maps.active.count();
  message.disk = answer.disk;
  message.beat = answer.beat;
  message.pedigree = encode_pedigree(answer.pedigree);
  message.size = answer.size;
  return message;
}

Result<mirror::Claimed> decode_claimed(ConstBytes bytes) {
  const auto message = decode<MirrorClaimResponse>(bytes, kMirrorClaimResponse);
  if (!message) return tl::unexpected(message.error());
  const bool is_vote = message->member == mirror::kVote && message->members < mirror::kMaxMembers;
  if (!is_number(message->member, message->members, is_vote))
    return tl::unexpected(DecodeError::bad_count);
  const auto view = decode_view(message->view, message->members);
  const auto confirmed = decode_view(message->confirmed, message->members);
  constexpr unsigned kKnown = kMirrorLostPower | kMirrorNew | kMirrorRefused | kMirrorPulls;
  if (!view || !confirmed || (message->flags & ~kKnown) != 0)
    return tl::unexpected(DecodeError::bad_value);
  mirror::Claimed answer;
  answer.promised = message->promised;
  answer.view = *view;
  answer.confirmed = *confirmed;
  answer.lost_power = (message->flags & kMirrorLostPower) != 0;
  answer.pulls = (message->flags & kMirrorPulls) != 0;
  answer.disk = message->disk;
  answer.beat = message->beat;
  answer.pedigree = decode_pedigree(message->pedigree);
  answer.size = message->size;
  if (!is_possible(answer)) return tl::unexpected(DecodeError::bad_value);
  const unsigned shift = message->region_shift;
  const bool fits = shift <= kMaxRegionShift && answer.size >> shift < kMaxGrownRegions;
  if (answer.size != 0 && !fits) return tl::unexpected(DecodeError::bad_length);
  return answer;
}

std::vector<std::byte> encode_regions(const mirror::RegionMap& map, std::uint32_t first,
                                      std::size_t capacity) {
  std::size_t room = 1;
  if (capacity > sizeof(MirrorRegionsResponse) + sizeof(MirrorRun))
    room = (capacity - sizeof(MirrorRegionsResponse)) / sizeof(MirrorRun);
  MirrorRegionsResponse head;
  head.header = header_of(kMirrorRegionsResponse);
  head.regions = map.regions();
  std::vector<std::byte> message(sizeof(head));
  std::uint32_t region = map.next(first);
  std::uint32_t count = 0;
  for (; region < map.regions() && count < room; ++count) {
    const std::uint32_t end = end_of_run(map, region);
    MirrorRun run;
    run.first = region;
    run.count = end - region;
    message.resize(message.size() + sizeof(run));
    put(message, message.size() - sizeof(run), run);
    region = map.next(end);
  }
  head.end = region;
  head.count = count;
  put(message, 0, head);
  return message;
}

Result<std::uint32_t> decode_regions(ConstBytes bytes, std::uint32_t first,
                                     mirror::RegionMap& map) {
  const auto head = decode<MirrorRegionsResponse>(bytes, kMirrorRegionsResponse);
  if (!head) return tl::unexpected(head.error());
  const std::uint32_t end = head->end;
  const std::uint32_t all = head->regions;
  if (all > kMaxGrownRegions || end > all || (end <= first && end != all))
    return tl::unexpected(DecodeError::bad_length);
  const auto runs = take_runs(bytes.subspan(sizeof(MirrorRegionsResponse)), head->count);
  if (!runs) return tl::unexpected(runs.error());
  if (!are_valid(*runs, first, end)) return tl::unexpected(DecodeError::bad_value);
  for (const MirrorRun& run : *runs) {
    const std::uint32_t behind = run.first + run.count;
    for (auto region = run.first.value(); region < std::min(behind, map.regions()); ++region)
      map.add(region);
  }
  return end == all ? map.regions() : std::min(end, map.regions());
}

Result<mirror::RegionMap> decode_map(ConstBytes& bytes, std::uint32_t regions) {
  mirror::RegionMap map{regions};
  MirrorRegionsResponse page;
  do {
    const auto end = decode_regions(bytes, page.end, map);
    if (!end) return tl::unexpected(end.error());
    page = rtrs::wire::copy_of<MirrorRegionsResponse>(bytes);
    bytes = bytes.subspan(sizeof(page) + page.count * sizeof(MirrorRun));
  } while (page.end != page.regions);
  return map;
}

Result<std::vector<mirror::RegionMap>> decode_inherited(ConstBytes data, mirror::MemberSet in_step,
                                                        unsigned members, std::uint32_t regions) {
  std::vector<mirror::RegionMap> maps;
  if (data.empty()) return maps;
  maps.resize(members, mirror::RegionMap{regions});
  for (unsigned k = 0; k < members; ++k) {
    if (mirror::has(in_step, k)) continue;
    auto map = decode_map(data, regions);
    if (!map) return tl::unexpected(map.error());
    maps[k] = *std::move(map);
  }
  return maps;
}

Result<std::string> decode_pull_uri(ConstBytes data) {
  if (data.empty() || data.size() > kMaxMirrorUri) return tl::unexpected(DecodeError::bad_name);
  std::string uri(data.size(), '\0');
  std::memcpy(uri.data(), data.data(), data.size());
  const bool control = std::any_of(uri.begin(), uri.end(),
                                   [](char c) { return (c >= 0 && c < ' ') || c == '\x7F'; });
  if (control) return tl::unexpected(DecodeError::bad_name);
  return uri;
}

}  // namespace rnbd::wire
