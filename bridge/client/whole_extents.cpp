// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/whole_extents.hpp"

#include <algorithm>
#include <utility>

namespace rnbd {
namespace {

class Builder {
 public:
  Builder(std::uint64_t offset, std::uint64_t asked, std::uint32_t unit)
      : end_{offset + asked}, unit_{unit}, done_{offset}, known_{offset} {}

  void add(const wire::Extent& extent) {
    const std::uint64_t end = known_ + extent.length;
    if (known_ > done_) {  // in the middle of a unit
      flags_ &= extent.flags;
      if (end < up(known_)) {
        known_ = end;
        return;
      }
      put(up(known_), flags_);
    }
    put(end - end % unit_, extent.flags);
    known_ = end;
    flags_ = extent.flags;
  }

  std::vector<wire::Extent> finish() {
    if (known_ > done_) put(up(known_), up(known_) == known_ ? flags_ : 0);
    return std::move(whole_);
  }

 private:
  std::uint64_t up(std::uint64_t position) const {
    return std::min((position + unit_ - 1) / unit_ * unit_, end_);
  }

  void put(std::uint64_t end, std::uint32_t flags) {
    if (end <= done_) return;
    if (!whole_.empty() && whole_.back().flags == flags) {
      whole_.back().length = whole_.back().length + (end - done_);
    } else {
      whole_.push_back({end - done_, flags, 0});
    }
    done_ = end;
  }

  const std::uint64_t end_;
  const std::uint32_t unit_;
  std::uint64_t done_;       ///< where the next whole extent begins
  std::uint64_t known_;      ///< where the next extent begins
  std::uint32_t flags_ = 0;  ///< of all between the two
  std::vector<wire::Extent> whole_;
};

}  // namespace

std::vector<wire::Extent> whole_extents(const std::vector<wire::Extent>& extents,
                                        std::uint64_t offset, std::uint64_t asked,
                                        std::uint32_t unit) {
  Builder builder{offset, asked, unit};
  for (const wire::Extent& extent : extents) builder.add(extent);
  return builder.finish();
}

}  // namespace rnbd
