// SPDX-License-Identifier: BSD-3-Clause
// A member's record in its file, at every moment in which the machine may lose its power.
#include "bridge/server/mirror/member_image.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "bridge/server/mirror/member_store.hpp"

namespace rnbd::member_image_test {
namespace {

using mirror::MemberState;
using mirror::Patch;
using mirror::RegionMap;
using mirror::Save;
using Image = std::vector<std::byte>;

constexpr std::uint64_t kDisk = std::uint64_t{10000} << 20;  ///< three pages for each map

bool contains(const RegionMap& whole, const RegionMap& part) {
  RegionMap rest = part;
  rest.remove(whole);
  return rest.empty();
}

/// Member 1 of three, in step with all, with region 5 in its activity log.
MemberState before() {
  MemberState state = mirror::new_member({7}, {1, 3, 20, kDisk});
  state.record.maps.active.clear();
  state.record.maps.active.add(5);
  state.record.view = state.record.confirmed = {{4, 2}, 0b111};
  state.record.promised = 4;
  return state;
}

/// Member 2 is lost: it lacks what was in the activity log, and what is written now.
MemberState after() {
  MemberState state = before();
  state.record.view = {{4, 3}, 0b011};
  for (const std::uint32_t region : {5U, 4500U, 9999U}) {
    state.record.maps.active.add(region);
    state.record.maps.dirty[2].add(region);
  }
  return state;
}

/// The steps from one to the other, as Seat makes them.
Save steps() {
  const MemberState state = after();
  Save save;
  for (const std::size_t page : {0U, 1U, 2U}) {
    save.first.push_back(mirror::page_patch(state.shape, state.record, 0, page));
    save.first.push_back(mirror::page_patch(state.shape, state.record, 3, page));
  }
  save.head = mirror::head_patch(state, state.record, 2);
  return save;
}

void lay(Image& image, const Patch& patch, std::size_t bytes) {
  std::copy_n(patch.bytes.begin(), bytes,
              image.begin() + static_cast<std::ptrdiff_t>(patch.offset));
}

/// Every image that a power cut may leave: of what is being made durable, any part may be there.
/// Here, a prefix of one patch, and all or nothing of the others.
void at_each_moment(const std::function<void(const Image&, bool first_done)>& look) {
  const Image old = mirror::whole_image(before(), 1);
  const Save save = steps();
  for (unsigned some = 0; some < 1U << save.first.size(); ++some) {
    for (std::size_t torn = 0; torn < save.first.size(); ++torn) {
      Image image = old;
      for (std::size_t i = 0; i < save.first.size(); ++i)
        if ((some >> i & 1) != 0) lay(image, save.first[i], save.first[i].bytes.size());
      lay(image, save.first[torn], 13 + torn * 64);
      look(image, false);
    }
  }
  Image image = old;
  for (const Patch& patch : save.first) lay(image, patch, patch.bytes.size());
  for (std::size_t bytes = 0; bytes <= save.head->bytes.size(); bytes += 4) {
    Image cut = image;
    lay(cut, *save.head, bytes);
    look(cut, true);
  }
}

TEST_CASE(
    "member image: a power cut leaves the old view or the new one, and no region is forgotten") {
  unsigned old_ones = 0, new_ones = 0;
  at_each_moment([&](const Image& image, bool first_done) {
    const auto loaded = mirror::load_image(image);
    REQUIRE(loaded);
    const mirror::MemberRecord& record = loaded->state.record;
    const MemberState wanted = record.view.id.seq == 3 ? after() : before();
    REQUIRE(record.view.set == wanted.record.view.set);
    REQUIRE((record.view.id.seq == 2 || first_done));
    CHECK(contains(record.maps.active, wanted.record.maps.active));
    CHECK(contains(record.maps.dirty[2], wanted.record.maps.dirty[2]));
    ++(record.view.id.seq == 3 ? new_ones : old_ones);
  });
  CHECK(old_ones > 300);
  CHECK(new_ones >= 1);
}

TEST_CASE("member image: the disk, its beat and the pedigree survive") {
  MemberState state = before();
  state.record.disk = 0x1122334455667788;
  state.record.beat = 9;
  state.record.pedigree = {{1, {{2, 3}, 4}}, {5, {}}, {6, {{7, 8}, 0}}};
  const auto loaded = mirror::load_image(mirror::whole_image(state, 1));
  REQUIRE(loaded);
  CHECK(loaded->state.record.disk == state.record.disk);
  CHECK(loaded->state.record.beat == 9);
  REQUIRE(loaded->state.record.pedigree.size() == mirror::kMaxMembers);
  CHECK(loaded->state.record.pedigree[0].age == mirror::Age{{2, 3}, 4});
  CHECK(loaded->state.record.pedigree[2].disk == 6);
}

TEST_CASE("member image: a vote has two heads, and no maps") {
  MemberState state = mirror::new_member({7}, {mirror::kVote, 2, 20, 0});
  state.record.view = {{4, 3}, static_cast<mirror::MemberSet>(mirror::bit(mirror::kVote) | 1)};
  state.record.promised = 4;
  state.record.disk = 5;
  const Image image = mirror::whole_image(state, 1);
  CHECK(image.size() == 8192);
  const auto loaded = mirror::load_image(image);
  REQUIRE(loaded);
  CHECK(loaded->state.shape.is_vote());
  CHECK(loaded->state.record.number == mirror::kVote);
  CHECK(loaded->state.record.view.set == state.record.view.set);
  CHECK(loaded->torn == 0);
}

TEST_CASE("member image: a torn page counts as all of its regions, and as no others") {
  Image image = mirror::whole_image(after(), 2);
  const Patch page = mirror::page_patch(after().shape, after().record, 0, 1);
  image[page.offset + 3] ^= std::byte{1};
  const auto loaded = mirror::load_image(image);
  REQUIRE(loaded);
  CHECK(loaded->torn == 1);
  CHECK(loaded->state.record.maps.active.count() == mirror::kRegionsPerPage + 2);
}

TEST_CASE("member image: a file that ends early, or pages in each other's places, are recognised") {
  Image image = mirror::whole_image(after(), 2);
  const Patch first = mirror::page_patch(after().shape, after().record, 0, 0);
  const Patch second = mirror::page_patch(after().shape, after().record, 0, 1);
  std::copy_n(first.bytes.begin(), first.bytes.size(),
              image.begin() + static_cast<std::ptrdiff_t>(second.offset));
  CHECK(mirror::load_image(image)->torn == 1);
  image.resize(image.size() - 1);
  CHECK(mirror::load_image(image)->torn == 2);
  image.resize(5000);
  CHECK_FALSE(mirror::load_image(image));
}

TEST_CASE("member image: without a whole head nothing is known") {
  Image image = mirror::whole_image(after(), 2);
  image[100] ^= std::byte{1};
  REQUIRE_FALSE(mirror::load_image(image));
  CHECK(mirror::load_image(image).error().text == "is damaged");
}

}  // namespace
}  // namespace rnbd::member_image_test
