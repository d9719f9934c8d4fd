// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/mirror_messages.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

using namespace rnbd::wire;
namespace mirror = rnbd::mirror;

namespace rnbd::mirror_messages_test {
namespace {

mirror::RegionMap map_of(std::uint32_t regions, std::initializer_list<std::uint32_t> some) {
  mirror::RegionMap map{regions};
  for (const std::uint32_t region : some) map.add(region);
  return map;
}

/// A page of 100 regions with these runs.
std::vector<std::byte> page(std::uint32_t end, std::initializer_list<MirrorRun> runs) {
  MirrorRegionsResponse head;
  head.header = header_of(kMirrorRegionsResponse);
  head.regions = 100;
  head.end = end;
  head.count = static_cast<std::uint32_t>(runs.size());
  std::vector<std::byte> bytes(sizeof(head) + runs.size() * sizeof(MirrorRun));
  std::memcpy(bytes.data(), &head, sizeof(head));
  if (runs.size() == 0) return bytes;
  std::memcpy(bytes.data() + sizeof(head), runs.begin(), runs.size() * sizeof(MirrorRun));
  return bytes;
}

void check_refused(const std::vector<std::byte>& bytes, DecodeError error) {
  mirror::RegionMap map{100};
  const auto end = decode_regions(bytes, 10, map);
  REQUIRE_FALSE(end);
  CHECK(end.error() == error);
  CHECK(map.empty());
}

TEST_CASE("mirror messages: regions survive in pages of any size") {
  const auto map = map_of(200, {0, 1, 2, 63, 64, 65, 130, 199});
  for (const std::size_t capacity : {0, 24, 32, 40, 4096}) {
    mirror::RegionMap again{200};
    for (std::uint32_t first = 0; first < 200;) {
      const auto end = decode_regions(encode_regions(map, first, capacity), first, again);
      REQUIRE(end);
      REQUIRE(*end > first);
      first = *end;
    }
    CHECK(again.words() == map.words());
  }
}

TEST_CASE("mirror: data are zeroes only if all bytes are") {
  std::vector<std::byte> data(1000);
  CHECK(mirror::only_zeroes(data));
  CHECK(mirror::only_zeroes({}));
  for (const std::size_t place : {std::size_t{0}, std::size_t{500}, data.size() - 1}) {
    data[place] = std::byte{1};
    CHECK_FALSE(mirror::only_zeroes(data));
    CHECK(mirror::only_zeroes(std::span{data}.first(place)));
    data[place] = {};
  }
  std::ranges::fill(data, std::byte{7});
  CHECK_FALSE(mirror::only_zeroes(data));
}

TEST_CASE("mirror messages: an empty map is one page without runs") {
  mirror::RegionMap map{200};
  const auto bytes = encode_regions(map, 0, 4096);
  CHECK(bytes.size() == sizeof(MirrorRegionsResponse));
  CHECK(decode_regions(bytes, 0, map) == 200);
}

TEST_CASE("mirror messages: regions that cannot be are refused, and nothing is taken") {
  check_refused(page(100, {{20, 5}, {25, 1}}), DecodeError::bad_value);  // touch each other
  check_refused(page(100, {{20, 5}, {12, 1}}), DecodeError::bad_value);
  check_refused(page(100, {{20, 0}}), DecodeError::bad_value);
  check_refused(page(100, {{9, 3}}), DecodeError::bad_value);
  check_refused(page(30, {{20, 11}}), DecodeError::bad_value);
  check_refused(page(100, {{20, 0xFFFFFFFF}}), DecodeError::bad_value);
  check_refused(page(101, {}), DecodeError::bad_length);
  check_refused(page(10, {}), DecodeError::bad_length);
  auto cut = page(100, {{20, 5}});
  cut.pop_back();
  check_refused(cut, DecodeError::bad_count);
  cut.resize(15);
  check_refused(cut, DecodeError::too_short);
}

TEST_CASE("mirror messages: an answer to a claim survives, and impossible ones are refused") {
  mirror::Claimed answer;
  answer.promised = 9;
  answer.view = {{7, 3}, 5};
  answer.confirmed = {{7, 2}, 7};
  answer.lost_power = true;
  answer.disk = 11;
  answer.beat = 4;
  answer.pedigree = {{11, {{7, 3}, 4}}, {12, {{7, 2}, 1}}, {}};
  MirrorClaimResponse message = encode_claimed(answer, 2, 3);
  const auto again = decode_claimed(rtrs::wire::bytes_of(message));
  REQUIRE(again);
  CHECK(again->promised == 9);
  CHECK(again->view.id == answer.view.id);
  CHECK(again->view.set == 5);
  CHECK(again->confirmed.set == 7);
  CHECK(again->lost_power);
  CHECK(again->disk == 11);
  CHECK(again->age() == mirror::Age{{7, 3}, 4});
  REQUIRE(again->pedigree.size() == mirror::kMaxMembers);
  CHECK(again->pedigree[1].disk == 12);
  CHECK(again->pedigree[1].age == mirror::Age{{7, 2}, 1});
  message.region_shift = 20;
  message.size = std::uint64_t{1} << 42;
  CHECK(decode_claimed(rtrs::wire::bytes_of(message)).error() == DecodeError::bad_length);
  message.size = 0;
  message.flags |= 2;  // as older servers do
  REQUIRE(decode_claimed(rtrs::wire::bytes_of(message)));
  CHECK(decode_claimed(rtrs::wire::bytes_of(message))->lost_power);
  message.flags = 16;
  CHECK(decode_claimed(rtrs::wire::bytes_of(message)).error() == DecodeError::bad_value);
  message = encode_claimed(answer, 3, 3);
  CHECK(decode_claimed(rtrs::wire::bytes_of(message)).error() == DecodeError::bad_count);
  message = encode_claimed(answer, 1, 2);  // two members, of which the third is in step
  CHECK(decode_claimed(rtrs::wire::bytes_of(message)).error() == DecodeError::bad_value);
}

MirrorClaim claim_of(unsigned member, unsigned members, std::uint64_t size) {
  MirrorClaim claim;
  claim.header = header_of(kMirrorClaim);
  claim.group[0] = claim.claimant[0] = 1;
  claim.term = 1;
  claim.member = static_cast<std::uint8_t>(member);
  claim.members = static_cast<std::uint8_t>(members);
  claim.region_shift = static_cast<std::uint8_t>(region_shift_of(size));
  claim.size = size;
  return claim;
}

void check_refused(const MirrorClaim& claim, DecodeError error) {
  CHECK(decode_claim(rtrs::wire::bytes_of(claim)).error() == error);
}

TEST_CASE("mirror messages: a claim tells the shape of its group") {
  const auto claim = claim_of(1, 3, (std::uint64_t{5} << 20) + 512);
  REQUIRE(decode_claim(rtrs::wire::bytes_of(claim)));
  const MirrorShape shape = shape_of(claim);
  CHECK(shape == MirrorShape{1, 3, 20, (std::uint64_t{5} << 20) + 512});
  CHECK(shape.regions() == 6);
  CHECK(shape_of(claim_of(0, 1, ~std::uint64_t{0} >> 1)).regions() <= kMaxMirrorRegions);
}

TEST_CASE("mirror messages: a claim of a client that knows no growth is shorter") {
  auto claim = claim_of(0, 2, 4096);
  claim.base = 1024;
  const auto bytes = rtrs::wire::bytes_of(claim);
  CHECK(decode_claim(bytes)->base == 1024);
  CHECK(decode_claim(bytes.first(kOldestMirrorClaim))->base == 0);
  CHECK(decode_claim(bytes.first(kOldestMirrorClaim - 1)).error() == DecodeError::too_short);
}

TEST_CASE("mirror messages: a disk that has grown may have more regions than a new one") {
  auto claim = claim_of(0, 2, std::uint64_t{1} << 41);
  claim.region_shift = 20;
  check_refused(claim, DecodeError::bad_length);
  claim.base = std::uint64_t{1} << 40;
  CHECK(decode_claim(rtrs::wire::bytes_of(claim)));
  claim.base = claim.size + 512;
  check_refused(claim, DecodeError::bad_length);
  claim = claim_of(0, 2, std::uint64_t{1} << 42);
  claim.region_shift = 20;
  claim.base = claim.size;
  check_refused(claim, DecodeError::bad_length);
}

TEST_CASE("mirror messages: of a larger disk the first regions count, of a smaller one all") {
  mirror::RegionMap map{100};
  CHECK(decode_regions(encode_regions(map_of(200, {3, 98, 99, 100, 199}), 0, 4096), 0, map) == 100);
  CHECK(map.count() == 3);
  CHECK(decode_regions(encode_regions(map_of(50, {7}), 0, 4096), 0, map) == 100);
  CHECK(map.contains(7));
  std::vector<std::byte> data;
  for (const auto& larger : {map_of(200, {1, 150, 160}), map_of(200, {2})}) {
    for (std::uint32_t first = 0; first < 200;) {  // in pages of one run
      const auto page = encode_regions(larger, first, 24);
      data.insert(data.end(), page.begin(), page.end());
      first = rtrs::wire::copy_of<MirrorRegionsResponse>(page).end;
    }
  }
  const auto maps = decode_inherited(data, 0b01, 3, 100);
  REQUIRE(maps);
  CHECK((*maps)[1].count() == 1);
  CHECK((*maps)[2].contains(2));
}

TEST_CASE("mirror messages: claims of groups that cannot be are refused") {
  check_refused(claim_of(3, 3, 4096), DecodeError::bad_count);
  check_refused(claim_of(0, 17, 4096), DecodeError::bad_count);
  check_refused(claim_of(0, 2, 0), DecodeError::bad_length);
  auto claim = claim_of(0, 2, 4096);
  claim.region_shift = kMinRegionShift - 1;
  check_refused(claim, DecodeError::bad_length);
  claim = claim_of(0, 2, std::uint64_t{1} << 41);
  claim.region_shift = 20;
  check_refused(claim, DecodeError::bad_length);
  claim = claim_of(0, 2, 4096);
  claim.term = 0;
  check_refused(claim, DecodeError::bad_value);
  claim = claim_of(0, 2, 4096);
  claim.group = {};
  check_refused(claim, DecodeError::bad_value);
}

TEST_CASE("mirror messages: a claim of a vote has no disk, and one of a disk is none of a vote") {
  auto claim = claim_of(mirror::kVote, 3, 0);
  claim.kind = MemberKind::vote;
  REQUIRE(decode_claim(rtrs::wire::bytes_of(claim)));
  CHECK(shape_of(claim).is_vote());
  CHECK(shape_of(claim).regions() == 0);
  claim.size = 4096;
  check_refused(claim, DecodeError::bad_length);
  claim.size = 0;
  claim.base = 4096;  // nor does it grow
  check_refused(claim, DecodeError::bad_length);
  claim = claim_of(1, 3, 0);
  claim.kind = MemberKind::vote;
  check_refused(claim, DecodeError::bad_count);
  claim = claim_of(mirror::kVote, 3, 4096);
  check_refused(claim, DecodeError::bad_count);
  claim = claim_of(mirror::kVote, mirror::kMaxMembers, 0);
  claim.kind = MemberKind::vote;
  check_refused(claim, DecodeError::bad_count);
  claim = claim_of(0, 2, 4096);
  claim.kind = MemberKind{2};
  check_refused(claim, DecodeError::bad_value);
}

TEST_CASE("mirror messages: a VIEW tells for each absent member what it lacks") {
  std::vector<std::byte> data;
  for (const auto& map : {map_of(100, {1, 2, 50}), map_of(100, {99})}) {
    for (std::uint32_t first = 0; first < 100;) {  // in pages of one run
      const auto page = encode_regions(map, first, 24);
      data.insert(data.end(), page.begin(), page.end());
      first = rtrs::wire::copy_of<MirrorRegionsResponse>(page).end;
    }
  }
  const auto maps = decode_inherited(data, 0b0101, 4, 100);
  REQUIRE(maps);
  REQUIRE(maps->size() == 4);
  CHECK((*maps)[0].empty());
  CHECK((*maps)[1].count() == 3);
  CHECK((*maps)[3].contains(99));
  data.pop_back();
  CHECK_FALSE(decode_inherited(data, 0b0101, 4, 100));
  CHECK(decode_inherited({}, 0b0101, 4, 100)->empty());
}

TEST_CASE("mirror messages: a view without anybody in it is none") {
  CHECK(decode_view(encode_view({{1, 1}, 0}), 3).error() == DecodeError::bad_value);
}

TEST_CASE("mirror messages: the claim of a vote names disks") {
  MirrorVoteClaim claim;
  claim.claim = claim_of(1, 3, 1 << 20);
  claim.disks[1] = 7;
  claim.disks[14] = 8;
  const auto bytes = rtrs::wire::bytes_of(claim);
  CHECK(decode_claimed_disks(bytes) == std::vector<std::uint64_t>{7, 8});
  CHECK(decode_claimed_disks(bytes.first(bytes.size() - 1)).error() == DecodeError::too_short);
}

TEST_CASE("mirror messages: a view has a disk beside the vote") {
  const mirror::MemberSet vote = mirror::bit(mirror::kVote);
  CHECK(decode_view(encode_view({{1, 1}, vote}), 3).error() == DecodeError::bad_value);
  REQUIRE(decode_view(encode_view({{1, 1}, mirror::with(vote, 2)}), 3));
  CHECK(decode_view(encode_view({{1, 1}, mirror::with(vote, 2)}), 3)->set == (vote | 4));
  CHECK_FALSE(decode_view(encode_view({{1, 1}, mirror::with(vote, 3)}), 3));
  CHECK(decode_view(encode_view({{1, 1}, vote}), mirror::kMaxMembers));  // that is a disk
}

TEST_CASE("mirror: the vote has another number in records than for clients") {
  CHECK(mirror::renumbered(0b101, 2) == (mirror::bit(mirror::kVote) | 1));
  CHECK(mirror::renumbered(mirror::renumbered(0b101, 2), 2) == 0b101);
  CHECK(mirror::renumbered(0b011, 2) == 0b011);
  const mirror::MemberSet all = 0xFFFF;
  CHECK(mirror::renumbered(all, mirror::kMaxMembers) == all);
  const auto pedigree = mirror::renumbered(mirror::Pedigree{{1, {}}, {2, {}}, {3, {}}}, 2);
  REQUIRE(pedigree.size() == mirror::kMaxMembers);
  CHECK(pedigree[mirror::kVote].disk == 3);
  CHECK(pedigree[2].disk == 0);
  CHECK(mirror::renumbered(pedigree, 2)[2].disk == 3);
}

TEST_CASE("mirror: a view needs as many as before of the one before it, and a disk") {
  using mirror::Degraded;
  const mirror::MemberSet a = 1, b = 2, vote = 4, all = 7;
  CHECK(mirror::are_enough(a | vote, all, 2, Degraded::allow));
  CHECK(mirror::are_enough(a | b, all, 2, Degraded::quorum));
  CHECK_FALSE(mirror::are_enough(a, all, 2, Degraded::allow));
  CHECK(mirror::are_enough(a, a | vote, 2, Degraded::allow));
  CHECK_FALSE(mirror::are_enough(a, a | vote, 2, Degraded::quorum));
  CHECK_FALSE(mirror::are_enough(vote, a | vote, 2, Degraded::allow));
  CHECK_FALSE(mirror::are_enough(b | vote, a | vote, 2, Degraded::allow));
}

TEST_CASE("mirror messages: the URI of a PULL is text of limited length") {
  const auto decoded = [](std::string_view text) {
    return decode_pull_uri(std::as_bytes(std::span{text.data(), text.size()}));
  };
  CHECK(decoded("rnbd+tcp://a:1/disk") == "rnbd+tcp://a:1/disk");
  CHECK(decoded("").error() == DecodeError::bad_name);
  CHECK(decoded("rnbd://a\n").error() == DecodeError::bad_name);
  CHECK(decoded(std::string(kMaxMirrorUri + 1, 'a')).error() == DecodeError::bad_name);
}

}  // namespace
}  // namespace rnbd::mirror_messages_test
