// SPDX-License-Identifier: BSD-3-Clause
// A mirror's report on itself.
#include <utility>

#include "bridge/client/mirror/mirror.hpp"

namespace rnbd::mirror {

void Mirror::report() {
  MirrorStatus status;
  status.live = group_ != nullptr && group_->live();
  status.size = shape_.size;
  status.region_bytes = std::uint64_t{1} << shape_.region_shift;
  if (group_ != nullptr) {
    status.term = group_->term();
    status.unequal = group_->unequal();
  }
  for (unsigned i = 0; i < members_.size(); ++i) {
    const Member& member = members_[i];
    const auto progress = group_ != nullptr ? group_->progress(i) : Group::Progress{};
    const std::string server = links_.server(i);
    report_.progress(i, server, progress, shape_.region_shift);
    status.members.push_back({.server = server,
                              .progress = progress,
                              .to_copy = report_.to_copy(i),
                              .discarded = member.discarded});
  }
  status.losses = report_.losses();
  status.returns = report_.returns();
  const std::lock_guard lock{mutex_};
  published_ = std::move(status);
}

MirrorStatus Mirror::status() const {
  MirrorStatus status;
  {
    const std::lock_guard lock{mutex_};
    status = published_;
    status.trouble = dead_;
  }
  status.uri = links_.uri();
  status.members.resize(members_.size());
  for (unsigned i = 0; i < members_.size(); ++i) {
    MemberStatus& member = status.members[i];
    member.server = links_.server(i);
    member.trouble = members_[i].link->trouble();
    member.session = members_[i].link->status();
  }
  if (!status.live && status.trouble.empty())
    status.trouble = "too few members: " + links_.troubles();
  return status;
}

}  // namespace rnbd::mirror
