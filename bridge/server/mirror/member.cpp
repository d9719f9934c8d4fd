// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/mirror/member.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace rnbd::mirror {

namespace {

std::uint32_t regions_of(std::uint64_t size, std::uint64_t region_bytes) {
  return static_cast<std::uint32_t>((size + region_bytes - 1) / region_bytes);
}

}  // namespace

MemberRecord MemberRecord::first(unsigned number, unsigned members, std::uint64_t size,
                                 std::uint64_t region_bytes) {
  const std::uint32_t regions = regions_of(size, region_bytes);
  const View all{{}, static_cast<MemberSet>((1U << members) - 1)};
  MemberRecord record;
  record.number = number;
  record.members = members;
  record.view = record.confirmed = all;
  record.region_bytes = region_bytes;
  record.size = size;
  record.maps.active = RegionMap{regions};
  record.maps.active.add_all();
  record.maps.dirty.assign(members, RegionMap{regions});
  return record;
}

bool Member::take_changed() { return std::exchange(changed_, false); }

bool Member::is_kept() const { return record_.view.id != ViewId{}; }

bool Member::is_of(const std::vector<std::uint64_t>& disks) const {
  if (record_.number != kVote || !is_kept()) return true;
  for (unsigned k = 0; k < record_.members && k < record_.pedigree.size(); ++k) {
    const std::uint64_t disk = record_.pedigree[k].disk;
    if (disk != 0 && std::ranges::find(disks, disk) != disks.end()) return true;
  }
  return false;
}

bool Member::refuses(std::uint64_t term, std::uint64_t session) const {
  if (record_.number == kVote && !is_kept()) return false;
  return term < record_.promised || (term == record_.promised && session != session_);
}

int Member::claim(std::uint64_t term, std::uint64_t session) {
  if (refuses(term, session)) return ESTALE;
  record_.promised = term;
  if (session != session_) pulls_.clear();
  session_ = session;
  changed_ = true;
  return 0;
}

bool Member::may_have(unsigned members) const {
  if (members == record_.members) return true;
  const auto counted = static_cast<MemberSet>(record_.view.set | record_.confirmed.set);
  const auto is_used = [&](unsigned k) {
    return has(counted, k) || (k < record_.pedigree.size() && record_.pedigree[k].disk != 0);
  };
  for (unsigned k = members; k < record_.members; ++k)
    if (is_used(k)) return false;
  return is_kept() && (members <= kVote || !is_used(kVote));
}

void Member::set_members(unsigned members) {
  RegionMap all{record_.maps.active.regions()};
  all.add_all();
  record_.maps.dirty.resize(members, all);
  record_.members = members;
  changed_ = true;
}

void Member::grow(std::uint64_t base, std::uint64_t size, const ViewId& view) {
  const std::uint64_t known = std::min(base, record_.size);
  if (size <= known || (view != ViewId{} && view != record_.view.id)) return;
  resize(std::max(record_.size, size));
  const auto first = static_cast<std::uint32_t>(known / record_.region_bytes);
  for (auto region = first; region < regions_of(size, record_.region_bytes); ++region) log(region);
}

void Member::resize(std::uint64_t size) {
  record_.size = size;
  const std::uint32_t regions = regions_of(size, record_.region_bytes);
  record_.maps.active.resize(regions);
  for (RegionMap& dirty : record_.maps.dirty) dirty.resize(regions);
  changed_ = true;
}

std::uint64_t Member::begin_pull() {
  pulls_.insert(++last_pull_);
  return last_pull_;
}

bool Member::awaits_pull(std::uint64_t pull) const { return pulls_.contains(pull); }

Claimed Member::claimed() const {
  return {.promised = record_.promised,
          .view = record_.view,
          .confirmed = record_.confirmed,
          .lost_power = record_.whole_epoch != epoch_,  // or it has never been in a view
          .maps = record_.maps,
          .disk = record_.disk,
          .beat = record_.beat,
          .pedigree = record_.pedigree,
          .size = record_.size};
}

int Member::serve(std::uint64_t session) const { return session == session_ ? 0 : ESTALE; }

int Member::lend(std::uint64_t disk) const { return disk == record_.disk ? 0 : ESTALE; }

int Member::dissolve(std::uint64_t session, std::uint64_t term) const {
  if (const int error = serve(session)) return error;
  if (term != record_.promised) return ESTALE;
  const bool alone = size(record_.view.set) == 1 && has(record_.view.set, record_.number) &&
                     record_.confirmed.id == record_.view.id;
  return alone && record_.view.id.term == term ? 0 : EPERM;
}

int Member::view(std::uint64_t session, const View& view, const View& confirmed,
                 const std::vector<RegionMap>& inherit, const Pedigree& pedigree,
                 std::uint64_t size) {
  if (const int error = serve(session)) return error;
  if (view.id.term < record_.promised) return ESTALE;
  if (view.id <= record_.view.id) return 0;  // a newer one of this client has overtaken it
  if (pedigree.size() < std::max(record_.members, record_.number + 1) || confirmed.id > view.id)
    return EINVAL;
  if (!is_vote() && size > record_.size) return EINVAL;
  const bool later = std::ranges::any_of(
      pedigree, [&](const Holder& holder) { return holder.age.view.term > view.id.term; });
  if (later) return EINVAL;
  if (has(view.set, record_.number) && pedigree[record_.number].disk != record_.disk) return EINVAL;
  record_.promised = std::max(record_.promised, view.id.term);
  if (!is_vote() && size != 0 && size != record_.size) resize(size);
  record_.view = view;
  if (confirmed.id > record_.confirmed.id) record_.confirmed = confirmed;
  record_.beat = 0;
  record_.pedigree = pedigree;
  for (unsigned k = 0; k < record_.members; ++k) {
    RegionMap& dirty = record_.maps.dirty[k];
    if (has(view.set, k)) {
      dirty.clear();
      continue;
    }
    dirty.add(record_.maps.active);
    if (!inherit.empty()) dirty.add(inherit[k]);
  }
  if (has(view.set, record_.number)) record_.whole_epoch = epoch_;
  changed_ = true;
  return 0;
}

int Member::confirm(std::uint64_t session, const View& view) {
  if (const int error = serve(session)) return error;
  if (view.id != record_.view.id) return 0;  // likewise
  record_.confirmed = record_.view;
  know({view.id, 0});
  changed_ = true;
  return 0;
}

/// All members of the newest view have come so far. Of a vote that is not known within a view, as
/// no member waits for it there.
void Member::know(const Age& age) {
  for (unsigned k = 0; k < record_.pedigree.size(); ++k) {
    const bool counts = age.beat == 0 || k < record_.members;
    if (counts && has(record_.view.set, k))
      record_.pedigree[k].age = std::max(record_.pedigree[k].age, age);
  }
}

int Member::write(std::uint64_t session, std::uint32_t first, std::uint32_t last, bool copy) {
  if (const int error = serve(session)) return error;
  for (std::uint32_t region = first; region <= last && !copy; ++region) log(region);
  return 0;
}

/// The dirty bits follow this member's own view: the sender's may have been older when it sent.
void Member::log(std::uint32_t region) {
  if (!record_.maps.active.contains(region)) {
    record_.maps.active.add(region);
    changed_ = true;
  }
  for (unsigned k = 0; k < record_.members; ++k) {
    RegionMap& dirty = record_.maps.dirty[k];
    if (has(record_.view.set, k) || dirty.contains(region)) continue;
    dirty.add(region);
    changed_ = true;
  }
}

int Member::cool(std::uint64_t session, const RegionMap& regions, const Age& age,
                 std::uint32_t known) {
  if (const int error = serve(session)) return error;
  if (!regions.empty() && age.view.term != record_.promised) return ESTALE;
  record_.maps.active.remove(regions);
  if (age.view == record_.view.id) {
    record_.beat = std::max(record_.beat, age.beat);
    if (known != 0) know({age.view, known});
  }
  changed_ = true;
  return 0;
}

}  // namespace rnbd::mirror
